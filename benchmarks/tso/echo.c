/* What the machine itself does to a request at a fixed rate: a server that sends back what it gets, and nothing else.
 *
 *   echo RATE SECONDS [CONNECTIONS]      latencies in microseconds as one JSON object
 *
 * The client never sleeps and sends at fixed times, as load.c --rate does; latencies count from those times. The server
 * is one thread that waits in epoll, as a TSO does. Whatever it shows is paid by every server on this machine.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 64
#define ROOM 4096

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void serve(int pairs[][2], int connections) {
    int epoll = epoll_create1(0);
    for (int i = 0; i < connections; i++) {
        close(pairs[i][0]);
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = pairs[i][1]};
        epoll_ctl(epoll, EPOLL_CTL_ADD, pairs[i][1], &wanted);
    }
    for (;;) {
        struct epoll_event ready[CONNECTIONS_MAX];
        int count = epoll_wait(epoll, ready, CONNECTIONS_MAX, -1);
        for (int i = 0; i < count; i++) {
            char bytes[ROOM];
            ssize_t got = read(ready[i].data.fd, bytes, ROOM);
            if (got <= 0 || write(ready[i].data.fd, bytes, got) != got) _exit(0);
        }
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    double rate = argc > 1 ? atof(argv[1]) : 0, seconds = argc > 2 ? atof(argv[2]) : 0;
    int connections = argc > 3 ? atoi(argv[3]) : 8;
    int64_t total = (int64_t)(rate * seconds), sent = 0, answered = 0;
    if (total < 100 || connections < 1 || connections > CONNECTIONS_MAX) {
        fprintf(stderr, "echo RATE SECONDS [CONNECTIONS 1-%d]: at least 100 requests\n", CONNECTIONS_MAX);
        return 1;
    }
    int pairs[CONNECTIONS_MAX][2];
    for (int i = 0; i < connections; i++)
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i])) return perror("socketpair"), 1;
    pid_t server = fork();
    if (server == 0) serve(pairs, connections);
    for (int i = 0; i < connections; i++) {
        close(pairs[i][1]);
        fcntl(pairs[i][0], F_SETFL, O_NONBLOCK);
    }
    double *taken_s = malloc(total * sizeof *taken_s), begun_s = now_s();
    while (answered < total) {
        for (; sent < total && now_s() >= begun_s + sent / rate; sent++)
            if (write(pairs[sent % connections][0], &sent, sizeof sent) != sizeof sent) return perror("write"), 1;
        for (int i = 0; i < connections; i++) {
            int64_t numbers[ROOM / sizeof(int64_t)];
            ssize_t got = read(pairs[i][0], numbers, sizeof numbers);
            double at_s = now_s();
            for (int j = 0; j < (int)(got / (ssize_t)sizeof *numbers); j++)
                taken_s[answered++] = at_s - (begun_s + numbers[j] / rate);
        }
    }
    kill(server, SIGKILL);
    qsort(taken_s, total, sizeof *taken_s, ascending);
    printf("{\"p50_us\": %.1f, \"p99_us\": %.1f}\n", taken_s[total / 2] * 1e6, taken_s[total * 99 / 100] * 1e6);
    return 0;
}
