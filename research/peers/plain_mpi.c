/* What `chimera comm bench` measures between two ranks, in plain MPI: bytes, and the seconds of a message one way and
   of a sum. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 7, ROUND_BYTES = 1 << 26 };

static int rank, other;

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* There and back. */
static void message(float *buffer, int n) {
    for (int turn = 0; turn < 2; turn++) {
        if (rank == turn)
            MPI_Send(buffer, n, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
        else
            MPI_Recv(buffer, n, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

static void exchange(float *out, float *in, int n) {
    MPI_Request requests[2];
    MPI_Irecv(in, n, MPI_FLOAT, other, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(out, n, MPI_FLOAT, other, 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

/* Each owns a half: takes the other's part of it, adds it, and gives the sum. */
static void sum(float *buffer, int n) {
    int half = (n + 1) / 2;
    float *mine = buffer, *theirs = buffer + half, *got = buffer + 2 * half;
    exchange(theirs, got, half);
    for (int i = 0; i < half; i++)
        mine[i] += got[i];
    exchange(mine, theirs, half);
}

static double median(void (*once)(float *, int), float *buffer, int n, int times) {
    double seconds[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        for (int i = 0; i < times; i++)
            once(buffer, n);
        seconds[round] = (MPI_Wtime() - start) / times;
    }
    qsort(seconds, ROUNDS, sizeof(double), by_size);
    return seconds[ROUNDS / 2];
}

int main(int argc, char **argv) {
    const int sizes[] = {4, 64, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    other = 1 - rank;
    for (int s = 0; s < 8; s++) {
        int bytes = sizes[s], n = bytes / 4, times = ROUND_BYTES / bytes;
        times = times < 20 ? 20 : times > 2000 ? 2000 : times;
        float *buffer = calloc(2 * n + 4, sizeof(float));
        double one_way = median(message, buffer, n, times) / 2, summed = median(sum, buffer, n, times);
        if (rank == 0)
            printf("%d %.9f %.9f\n", bytes, one_way, summed);
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
