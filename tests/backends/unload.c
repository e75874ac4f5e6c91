/* Loads the library, lets its threads help, and unloads it. They sleep in its code, so that must stay. */
#include <dlfcn.h>
#include <specdec.h>
#include <stdio.h>
#include <unistd.h>

enum { UNIFORMS = 8 << 20 };
static float uniforms[UNIFORMS];

int main(int count, char** arguments) {
  (void)count;
  for (int i = 0; i < 3; ++i) {
    void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    int (*uniform)(const specdec_uniform_params*, int);
    *(void**)&uniform = library ? dlsym(library, "specdec_cpu_uniform") : NULL;
    if (!uniform) return puts(dlerror()), 1;
    specdec_uniform_params params = {.stream = 6, .uniforms = {uniforms, 1, UNIFORMS, 1}};
    params.noise.seed.value = 7;
    if (uniform(&params, 3) != SPECDEC_OK) return puts("no uniforms"), 1;
    if (dlclose(library)) return puts(dlerror()), 1;
    usleep(20000);
  }
  return 0;
}
