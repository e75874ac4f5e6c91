/* Loads the library, lets its threads help, and unloads it. They sleep in its code, so that must stay. */
#include <dlfcn.h>
#include <specdec.h>
#include <stdio.h>
#include <unistd.h>

enum { COINS = 8 << 20 };
static float coins[COINS];

int main(int count, char** arguments) {
  (void)count;
  for (int i = 0; i < 3; ++i) {
    void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    int (*coin)(const specdec_coin_params*, int);
    *(void**)&coin = library ? dlsym(library, "specdec_cpu_coin") : NULL;
    if (!coin) return puts(dlerror()), 1;
    specdec_coin_params params = {.stream = 6, .coins = {coins, 1, COINS, 1}};
    params.noise.seed.value = 7;
    if (coin(&params, 3) != SPECDEC_OK) return puts("no coins"), 1;
    if (dlclose(library)) return puts(dlerror()), 1;
    usleep(20000);
  }
  return 0;
}
