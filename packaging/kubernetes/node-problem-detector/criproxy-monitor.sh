#!/bin/sh
# A plugin of node-problem-detector: criproxy-monitor.sh gone|slow|ready. It exits with 0 if all is well, with 1 if there
# is the trouble that is asked about, which it prints, and with 2 if it cannot know.
#
# Where node-problem-detector runs as a pod, it needs the host's PID namespace and a privileged container; nsenter then
# runs the node's own criproxy. Set CRIPROXY to another command if the node has another one.
text=$(${CRIPROXY:-nsenter -t 1 -m criproxy} status -line -exit-code 2>&1)
code=$?
case "$1 $code $text" in
"ready 1 "*) ;;
"ready 0 "* | "ready 3 "*) exit 0 ;;
"gone "[13]*" gone since "* | "slow "[13]*" slow since "*) ;;
"gone "[03]" "* | "slow "[03]" "*) exit 0 ;;
*)
  echo "criproxy does not answer: $text"
  exit 2
  ;;
esac
echo "$text"
exit 1
