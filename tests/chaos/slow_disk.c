/* Preloaded into Postgres: every fsync takes longer by the microseconds in the file CHAOS_DISK_DELAY. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void delay(void)
{
    const char *path = getenv("CHAOS_DISK_DELAY");
    FILE *file = path ? fopen(path, "re") : NULL;
    unsigned int microseconds = 0;

    if (!file)
        return;
    if (fscanf(file, "%u", &microseconds) == 1 && microseconds)
        usleep(microseconds);
    fclose(file);
}

int fsync(int descriptor)
{
    int (*real)(int) = (int (*)(int)) dlsym(RTLD_NEXT, "fsync");

    delay();
    return real(descriptor);
}

int fdatasync(int descriptor)
{
    int (*real)(int) = (int (*)(int)) dlsym(RTLD_NEXT, "fdatasync");

    delay();
    return real(descriptor);
}
