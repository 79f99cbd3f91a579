#!/usr/bin/env bash
# A Slurm cluster of N nodes on this one machine, for tests. Nothing outside its folder is touched, and no system service.
#   cluster.sh up N [--cpus C]    starts munged, slurmctld and N nodes with C CPUs each (default 2)
#   cluster.sh down               ends exactly what `up` started, jobs included, and removes the folder
#   cluster.sh env                shell lines that point sbatch, srun, squeue, … to this cluster: eval "$(cluster.sh env)"
#   cluster.sh kill NODE          power cut: slurmd and every task of that node end at once
#   cluster.sh start NODE         switches it on again
# Each may be given --folder F (default: build/slurm of this checkout); `up --again` first takes down what an interrupted
# test left in the folder. Exit 77 (CTest: skipped): this machine cannot do
# it; what is missing is named. Exit 2: wrong use, such as `up` twice. Exit 1: it should have worked; logs are shown.
set -euo pipefail

# A node is a process tree in its own mount, UTS and PID namespaces: own host name, /tmp, /dev/shm and /proc. So MPI
# libraries take it for a machine of its own (shared memory inside, TCP between), and killing its first process takes
# all of it away, as a power cut does.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)

die() { echo "cluster.sh: $1" >&2; exit "${2:-2}"; }
cannot() { echo "SKIPPED: a Slurm cluster on this machine: $*" >&2; exit 77; }

check_machine() {
  local program lacking=()
  [ "$(uname)" = Linux ] || cannot "needs Linux"
  for program in munged munge unmunge slurmctld slurmd scontrol sbatch srun squeue scancel sinfo unshare setsid ip; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || lacking+=("$program")
  done
  [ ${#lacking[@]} = 0 ] ||
    cannot "missing programs: ${lacking[*]} (Debian: apt-get install slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge iproute2)"
  [ "$(id -u)" = 0 ] || cannot "needs root, as daemons that start jobs and namespaces do"
  unshare --mount --uts --pid --fork --mount-proc true 2>/dev/null || cannot "mount, UTS and PID namespaces are not permitted here (a container without CAP_SYS_ADMIN?)"
}

# identity PID: the process and when it began, so that a number that was given out again is not taken for ours
identity() { awk '{ sub(/^.*\) /, ""); print $20 }' "/proc/$1/stat" 2>/dev/null; }
remember() { echo "$2 $(identity "$2")" >"$folder/pids/$1"; }
# alive NAME: sets pid when the process remembered under this name is still there
alive() {
  local began
  [ -s "$folder/pids/$1" ] || return 1
  read -r pid began <"$folder/pids/$1"
  [ -n "$began" ] && [ "$(identity "$pid")" = "$began" ]
}
# stop NAME SIGNAL: and waits for its end
stop() {
  local i
  if alive "$1"; then
    kill "-$2" "$pid" 2>/dev/null || true
    for ((i = 0; i < 500; i++)); do alive "$1" || break; sleep 0.02; done
    if alive "$1"; then kill -KILL "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$folder/pids/$1"
}

# wait_until SECONDS WHAT command…
wait_until() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $end ] || { [ -e "$folder/pids/slurmctld" ] && ! alive slurmctld; }; then
      tail -n 15 "$folder"/log/* >&2 || true
      die "$what: not up within time, or slurmctld ended; the ends of the logs are above" 1
    fi
    sleep 0.05
  done
}

# free_ports COUNT: the first of a row of TCP ports that nobody listens on or uses
free_ports() {
  local count=$1 first port used
  used=" $(awk 'FNR > 1 { split($2, a, ":"); print a[2] }' /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u | while read -r hex; do echo -n "$((16#$hex)) "; done)"
  # below the range of outgoing connections (32768 and up); by process id, so that two clusters rarely try the same
  for ((first = 20000 + $$ % 500 * 20; first < 32000; first += count)); do
    for ((port = first; port < first + count; port++)); do
      case $used in *" $port "*) continue 2 ;; esac
    done
    echo "$first"
    return
  done
  die "no $count free TCP ports in a row between 20000 and 32000" 1
}

node_names() { local k; for ((k = 1; k <= nodes; k++)); do echo "n$k"; done; }

write_config() {
  local first
  first=$(free_ports $((nodes + 1)))
  {
    echo "127.0.0.1 localhost head $(node_names | tr '\n' ' ')"
    grep -v '^127\.0\.0\.1[[:space:]]*localhost$' /etc/hosts || true
  } >"$folder/hosts"
  cat >"$folder/slurm.conf" <<CONF
ClusterName=orthant
SlurmctldHost=head(127.0.0.1)
SlurmctldPort=$first
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# a requeued job is held for cred_expire + 1 seconds: 6 instead of 121
AuthInfo=socket=$socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmctldPidFile=$folder/slurmctld.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdPidFile=$folder/spool/%n.pid
SlurmdSpoolDir=$folder/spool/%n
SlurmdLogFile=$folder/log/%n
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
# the machine has fewer cores than the nodes say
SlurmdParameters=config_overrides
ReturnToService=2
# a node that does not answer for so long is down, and its jobs are requeued (default: 300)
SlurmdTimeout=15
MessageTimeout=60
KillWait=5
MinJobAge=600
NodeName=DEFAULT CPUs=$cpus Boards=1 SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=1000
$(for ((k = 1; k <= nodes; k++)); do echo "NodeName=n$k NodeHostname=n$k NodeAddr=127.0.0.1 Port=$((first + k))"; done)
# a job in "urgent" takes the nodes of jobs in "main": these are sent SIGCONT and SIGTERM, and are requeued after the grace time
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=30
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=2 PreemptMode=OFF
CONF
  # slurmd starts a cgroup plugin even where nothing uses one; this one asks for no mounted cgroups
  echo "CgroupPlugin=cgroup/v1" >"$folder/cgroup.conf"
}

# Name look-ups that respect "only families with an address" find none where loopback is the only interface; a second
# loopback address cures it. Open MPI leaves loopback out between nodes unless told.
lonely() { [ -z "$(ip -o addr show up 2>/dev/null | awk '$2 != "lo" && $4 !~ /^fe80/')" ]; }

write_env() {
  {
    echo "export SLURM_CONF='$folder/slurm.conf'"
    # PMIx would look for a munge of the system
    echo "export PMIX_MCA_psec=native"
    # the default fence of Slurm 22.05 lets some ranks leave MPI_Init while others are still in it: with Open MPI 4.1.4, 14 of
    # 120 starts on 4 nodes ended in a segmentation fault; with this one, none of 140
    echo "export SLURM_PMIX_FENCE=ring"
    if [ -e "$folder/lonely" ]; then
      echo "export OMPI_MCA_btl_tcp_if_include=127.0.0.0/8 OMPI_MCA_oob_tcp_if_include=127.0.0.0/8"
    fi
  } >"$folder/env"
}

# The first process of a node. Arguments: FOLDER NODE PATH…; the paths stay visible although /tmp is private.
be_node() {
  local folder=$1 node=$2 path top fields
  shift 2
  # /proc is still that of the machine, and gives the number that this process has there
  read -ra fields </proc/self/stat
  echo "${fields[0]} $(identity "${fields[0]}")" >"$folder/pids/$node"
  hostname "$node"
  mount -t proc proc /proc
  mount --bind "$folder/hosts" /etc/hosts
  local private=$folder/nodes/$node
  for top in /tmp /dev/shm; do
    mount -t tmpfs -o mode=1777 none "$private"
    for path in "$@"; do
      case $path in "$top"/*)
        path=${path#"$top"/} path=${path%%/*}
        if [ ! -e "$private/$path" ]; then
          mkdir "$private/$path"
          mount --rbind "$top/$path" "$private/$path"
        fi
        ;;
      esac
    done
    mount --move "$private" "$top"
  done
  trap '' HUP
  SLURM_CONF=$folder/slurm.conf PATH=$PATH:/usr/sbin slurmd -D -N "$node" &
  local slurmd=$!
  # as the first process, bash also collects what lost its parent
  while kill -0 "$slurmd" 2>/dev/null; do wait "$slurmd" || true; done
}

start_node() {
  local node=$1
  rm -rf "$folder/spool/$node"  # after a power cut, sockets of its last step would be in the way
  mkdir -p "$folder/nodes/$node" "$folder/spool/$node"
  setsid unshare --mount --uts --pid --fork --kill-child --propagation private \
    bash "$here/cluster.sh" be_node "$folder" "$node" "$folder" "$root" "$PWD" >>"$folder/log/$node.out" 2>&1 </dev/null &
  wait_until 30 "$node" test -s "$folder/pids/$node"
}

node_up() { scontrol show node "$1" | grep -qE 'State=(IDLE|MIXED|ALLOCATED) |State=(IDLE|MIXED|ALLOCATED)$'; }
all_up() { local node; for node in $(node_names); do node_up "$node" || return 1; done; }

up() {
  if [ "$again" = yes ] && [ -e "$folder/pids" ]; then (down); fi
  [ ! -e "$folder" ] || die "$folder is there already: a cluster is up (or one was not taken down); first: cluster.sh down --folder $folder"
  check_machine
  mkdir -p "$folder"/{log,pids,spool,state,nodes}
  folder=$(cd "$folder" && pwd -P)
  chmod 755 "$folder"
  local run
  run=$(mktemp -d /run/orthant-slurm.XXXXXX)  # a socket's path must be short, and the folder's need not be
  chmod 755 "$run"
  socket=$run/munge
  echo "$run" >"$folder/run"
  echo "$nodes" >"$folder/count"
  trap down EXIT  # until all is up
  if lonely; then
    if ! ip link set lo up || ! ip addr add 127.0.0.2/8 dev lo; then
      cannot "no network interface but loopback, and it cannot be given a second address"
    fi
    touch "$folder/lonely"
  fi
  write_config
  write_env
  # shellcheck disable=SC1091
  . "$folder/env"

  (umask 077 && head -c 1024 /dev/urandom >"$run/key")
  munged --force --foreground --socket="$socket" --key-file="$run/key" --pid-file="$run/pid" --log-file="$folder/log/munged" \
    --seed-file="$run/seed" >>"$folder/log/munged.out" 2>&1 </dev/null &
  remember munged $!
  wait_until 30 "munged" sh -c "munge -S '$socket' -n | unmunge -S '$socket'"

  setsid unshare --uts --mount --propagation private bash "$here/cluster.sh" be_head "$folder" >>"$folder/log/slurmctld.out" 2>&1 </dev/null &
  remember slurmctld $!
  local node
  for node in $(node_names); do start_node "$node"; done
  wait_until 60 "slurmctld and $nodes nodes" all_up
  trap - EXIT
  echo "$nodes nodes with $cpus CPUs are up; eval \"\$(cluster.sh env --folder $folder)\""
}

down() {
  [ -e "$folder/pids" ] || die "no cluster in $folder"
  local file run
  folder=$(cd "$folder" && pwd -P)
  for file in "$folder"/pids/n[0-9]*; do
    if [ -e "$file" ]; then stop "$(basename "$file")" KILL; fi
  done
  stop slurmctld KILL  # its state goes with the folder, and an orderly end takes seconds
  stop munged TERM
  if [ -e "$folder/lonely" ]; then ip addr del 127.0.0.2/8 dev lo 2>/dev/null || true; fi
  run=$(cat "$folder/run" 2>/dev/null || true)
  case $run in /run/orthant-slurm.*) rm -rf "$run" ;; esac
  rm -rf "$folder"
}

known_node() {
  [ -e "$folder/pids" ] || die "no cluster in $folder"
  folder=$(cd "$folder" && pwd -P)
  case $1 in n[1-9] | n[1-9][0-9]) ;; *) die "\"$1\" is not a node; they are called n1, n2, …" ;; esac
  [ "${1#n}" -le "$(cat "$folder/count")" ] || die "there is no node $1; the last one is n$(cat "$folder/count")"
}

PATH=$PATH:/usr/sbin:/sbin
case ${1:-} in
  be_node) shift; be_node "$@"; exit ;;
  be_head) hostname head; mount --bind "$2/hosts" /etc/hosts; exec slurmctld -D -f "$2/slurm.conf" ;;
esac

folder=${ORTHANT_SLURM_FOLDER:-$root/build/slurm} cpus=2 again=no words=()
while [ $# -gt 0 ]; do
  case $1 in
    --folder) [ $# -gt 1 ] || die "--folder needs a path"; folder=$2; shift ;;
    --again) again=yes ;;
    --cpus) [ $# -gt 1 ] || die "--cpus needs a number"; cpus=$2; shift ;;
    -*) die "unknown option $1; see the head of this file" ;;
    *) words+=("$1") ;;
  esac
  shift
done
case "${words[*]:-}" in
  "up "*)
    nodes=${words[1]}
    case $nodes$cpus in *[!0-9]*) die "up needs a number of nodes, as in: up 4" ;; esac
    if [ "$nodes" -lt 1 ] || [ "$nodes" -gt 64 ] || [ "$cpus" -lt 1 ]; then die "1 to 64 nodes with at least 1 CPU"; fi
    up ;;
  down) down ;;
  env) [ -e "$folder/env" ] || die "no cluster in $folder"; cat "$folder/env" ;;
  "kill "*) known_node "${words[1]}"; stop "${words[1]}" KILL ;;
  "start "*)
    known_node "${words[1]}"
    if alive "${words[1]}"; then die "${words[1]} is on"; fi
    # shellcheck disable=SC1091
    . "$folder/env"
    start_node "${words[1]}"
    wait_until 60 "${words[1]}" node_up "${words[1]}" ;;
  *) die "up N, down, env, kill NODE or start NODE; see the head of this file" ;;
esac
