mpirun --with-ft ulfm -n {n_ranks} --map-by slot:OVERSUBSCRIBE --bind-to none \
  {train} &
launcher=$!
asked=
trap 'asked=yes; pkill -TERM -P "$launcher" chimera' TERM
wait "$launcher"
code=$?
while kill -0 "$launcher" 2>/dev/null; do
  wait "$launcher"
  code=$?
done
# 75: saved before the time was over.
[ $code -eq 75 ] || {{ [ -n "$asked" ] && [ $code -ne 0 ]; }} && exec scontrol requeue "$SLURM_JOB_ID"
