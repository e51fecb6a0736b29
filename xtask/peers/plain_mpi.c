/* One-way times of plain MPI between two ranks, for the sizes of `chimera comm bench`: bytes and seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 7, ROUND_BYTES = 1 << 26 };

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    const int sizes[] = {4, 64, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22};
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int s = 0; s < 8; s++) {
        int bytes = sizes[s], n = ROUND_BYTES / bytes;
        n = n < 20 ? 20 : n > 2000 ? 2000 : n;
        char *buffer = calloc(bytes, 1);
        double times[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (int i = 0; i < n && rank < 2; i++) {
                int first = rank, other = 1 - rank;
                for (int turn = 0; turn < 2; turn++, first = 1 - first) {
                    if (first == 0)
                        MPI_Send(buffer, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD);
                    else
                        MPI_Recv(buffer, bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                }
            }
            times[round] = (MPI_Wtime() - start) / n / 2;
        }
        qsort(times, ROUNDS, sizeof(double), by_size);
        if (rank == 0)
            printf("%d %.9f\n", bytes, times[ROUNDS / 2]);
        free(buffer);
    }
    MPI_Finalize();
    return 0;
}
