// Compiled twice, with two values of WHICH: each object has a function of one name.
__attribute__((noinline)) inline int which() { return WHICH; }
#define NAME_(which) which_of_##which
#define NAME(which) NAME_(which)
extern "C" int NAME(WHICH)() { return which(); }
