/* Touches a closed page with one instruction after the other, and prints whether fault_is_write() takes it for a write.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#include "instrument/fault.h"

enum { PAGE = 1 << 16 };

static volatile sig_atomic_t is_write;
static char *page;

static void on_fault(int number, siginfo_t *info, void *context)
{
    (void)number, (void)info;
    is_write = fault_is_write(context);
    mprotect(page, PAGE, PROT_READ | PROT_WRITE);
}

#define TOUCH(kind, instruction)                                                                             \
    do {                                                                                                     \
        is_write = -1;                                                                                       \
        mprotect(page, PAGE, PROT_NONE);                                                                     \
        __asm__ volatile(instruction::"r"(page) : "x0", "x1", "x2", "x3", "v0", "v1", "v2", "v3", "memory"); \
        printf("%s %d %s\n", kind, (int)is_write, instruction);                                              \
    } while (0)
#define READ(instruction) TOUCH("0", instruction)
#define WRITE(instruction) TOUCH("1", instruction)

int main(void)
{
    page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &action, NULL);
    READ("ldr w0, [%0]");
    READ("ldr x0, [%0, #8]");
    READ("ldrb w0, [%0]");
    READ("ldur x0, [%0, #1]");
    READ("ldrsw x0, [%0]");
    READ("ldrsb w0, [%0]");
    READ("ldursh x0, [%0, #1]");
    READ("ldr x0, [%0, xzr]");
    READ("mov x1, %0; ldr x0, [x1], #8");
    READ("ldp x0, x1, [%0]");
    READ("ldnp q0, q1, [%0]");
    READ("ldpsw x0, x1, [%0]");
    READ("ldr s0, [%0]");
    READ("ldr d0, [%0]");
    READ("ldr q0, [%0]");
    READ("ldur q0, [%0, #1]");
    READ("ldp q0, q1, [%0]");
    READ("ld1 {v0.4s}, [%0]");
    READ("ld1r {v0.4s}, [%0]");
    READ("ld4 {v0.4s, v1.4s, v2.4s, v3.4s}, [%0]");
    READ("ld1 {v0.s}[1], [%0]");
    READ("ldar w0, [%0]");
    READ("ldxr w0, [%0]");
    READ("ldapr w0, [%0]");
    READ("ptrue p0.b; ld1b {z0.b}, p0/z, [%0]");
    READ("ptrue p0.s; ld1rw {z0.s}, p0/z, [%0]");
    READ("mov z1.d, #0; ptrue p0.d; ld1d {z0.d}, p0/z, [%0, z1.d]");
    READ("ldr z0, [%0]");
    WRITE("str w0, [%0]");
    WRITE("str x0, [%0, #8]");
    WRITE("strb w0, [%0]");
    WRITE("stur x0, [%0, #1]");
    WRITE("str x0, [%0, xzr]");
    WRITE("mov x1, %0; str x0, [x1], #8");
    WRITE("stp x0, x1, [%0]");
    WRITE("stnp q0, q1, [%0]");
    WRITE("str s0, [%0]");
    WRITE("str d0, [%0]");
    WRITE("str q0, [%0]");
    WRITE("stur q0, [%0, #1]");
    WRITE("stp q0, q1, [%0]");
    WRITE("st1 {v0.4s}, [%0]");
    WRITE("st4 {v0.4s, v1.4s, v2.4s, v3.4s}, [%0]");
    WRITE("st1 {v0.s}[1], [%0]");
    WRITE("ptrue p0.b; st1b {z0.b}, p0, [%0]");
    WRITE("mov z1.d, #0; ptrue p0.d; st1d {z0.d}, p0, [%0, z1.d]");
    WRITE("str z0, [%0]");
    WRITE("stlr w0, [%0]");
    WRITE("ldadd w0, w1, [%0]");
    WRITE("ldaddal x0, x1, [%0]");
    WRITE("swp w0, w1, [%0]");
    WRITE("cas w0, w1, [%0]");
    WRITE("casal x0, x1, [%0]");
    WRITE("casp x0, x1, x2, x3, [%0]");
    WRITE("dc zva, %0");
    return 0;
}
