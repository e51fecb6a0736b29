srun --mpi={mpi} --wait=30 --cpus-per-task={threads} --cpu-bind=cores \
  {train}
code=$?
# 75: saved before the time was over.
[ $code -eq 75 ] && exec scontrol requeue "$SLURM_JOB_ID"
