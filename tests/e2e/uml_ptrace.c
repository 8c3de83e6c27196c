/* Lets User Mode Linux 6.1 run on processors with AMX.
 *
 * It keeps the floating point state of its programs in a buffer that was sized before AMX. The host's kernel takes that
 * state only whole, refuses the short one, and UML ends with its first program. Preloaded into UML, this lengthens what
 * UML sets by zeros, which is what tiles hold that nobody has used.
 */
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static char whole[16384];

long ptrace(enum __ptrace_request request, ...) {
    va_list more;
    va_start(more, request);
    long pid = va_arg(more, long);
    void *where = va_arg(more, void *), *data = va_arg(more, void *);
    va_end(more);
    if (request == PTRACE_SETREGSET && (long)where == NT_X86_XSTATE) {
        struct iovec *given = data, longer = {whole, sizeof whole};
        if (given->iov_len < sizeof whole) {
            memset(whole, 0, sizeof whole);
            memcpy(whole, given->iov_base, given->iov_len);
            return syscall(SYS_ptrace, request, pid, where, &longer);
        }
    }
    long word;
    if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) { /* the C library returns the word itself */
        long done = syscall(SYS_ptrace, request, pid, where, &word);
        return done < 0 ? done : word;
    }
    return syscall(SYS_ptrace, request, pid, where, data);
}
