/* A rank's own port: connections leave by the address of the interface that gloo was given.
 *
 * gloo listens on the interface that GLOO_SOCKET_IFNAME names, and lets the kernel choose by which
 * one it connects. NCCL drives the NIC of its GPU in both directions.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

int connect(int fd, const struct sockaddr *to, socklen_t length)
{
    static int (*next)(int, const struct sockaddr *, socklen_t);
    const char *name = getenv("GLOO_SOCKET_IFNAME");
    struct sockaddr_in own;
    socklen_t size = sizeof own;

    if (!next)
        next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect");
    if (name && to->sa_family == AF_INET &&
        ntohl(((const struct sockaddr_in *)to)->sin_addr.s_addr) >> 24 != IN_LOOPBACKNET &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0 && own.sin_family == AF_INET &&
        own.sin_addr.s_addr == INADDR_ANY && own.sin_port == 0) {
        struct ifreq request = {0};

        strncpy(request.ifr_name, name, IFNAMSIZ - 1);
        if (ioctl(fd, SIOCGIFADDR, &request) != 0)
            return -1;
        memcpy(&own, &request.ifr_addr, sizeof own);
        own.sin_port = 0;
        if (bind(fd, (struct sockaddr *)&own, sizeof own) != 0)
            return -1;
    }
    return next(fd, to, length);
}
