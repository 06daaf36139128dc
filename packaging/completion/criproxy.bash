# Made by criproxy completion bash.
_criproxy() {
	local word=${COMP_WORDS[COMP_CWORD]} command=serve flags=
	[[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
	case $command in
	demo) flags='-idle -once -outage' ;;
	serve) flags='-admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -data-path -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	check) flags='-context -drift -f -kubeconfig -l -node -nodes -o -timeout -admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -data-path -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	doctor) flags='-context -kubeconfig -l -node -nodes -o -timeout -admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -data-path -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	install) flags='-config -containerd-config -crio-drop-ins -dry-run -takeover' ;;
	uninstall) flags='-config -containerd-config -crio-drop-ins -dry-run' ;;
	why) flags='-admin -context -descriptor-set -explain -kubeconfig -l -n -node -nodes -o -proto -proto-path -since -timeout' ;;
	status) flags='-admin -before -context -exit-code -kubeconfig -l -line -node -nodes -o -timeout -watch' ;;
	pods) flags='-admin -backend -context -kubeconfig -l -n -namespace -node -nodes -o -timeout -watch' ;;
	events) flags='-admin -backend -context -follow -kubeconfig -l -node -nodes -o -since -timeout' ;;
	where) flags='-admin -context -kubeconfig -l -n -node -nodes -o -timeout' ;;
	hooks) flags='-admin -context -kubeconfig -l -node -nodes -o -timeout' ;;
	instances) flags='-context -kubeconfig -l -node -nodes -o -timeout' ;;
	support) flags='-admin -config -context -kubeconfig -l -node -nodes -timeout' ;;
	ui) flags='-admin -context -descriptor-set -kubeconfig -l -listen -n -node -nodes -proto -proto-path -timeout' ;;
	tail) flags='-admin -backend -call -client -container -context -descriptor-set -diff -find -follow -follow-pod -full -id -kubeconfig -l -last -memory -method -n -namespace -node -nodes -o -own -past -pod -proto -proto-path -since -slower -status -timeout' ;;
	dump) flags='-admin -context -descriptor-set -kubeconfig -l -node -nodes -proto -proto-path -since -timeout -until' ;;
	view) flags='-backend -call -client -container -descriptor-set -diff -find -follow-pod -full -html -id -memory -method -namespace -o -own -pod -proto -proto-path -sequence -since -slower -stats -status -until' ;;
	convert) flags='-descriptor-set -proto -proto-path' ;;
	tap) flags='-admin -backend -call -capture -capture-files -capture-max-bytes -client -connect -container -descriptor-set -diff -find -flight-recorder -follow-pod -full -id -listen -memory -method -namespace -o -own -pod -proto -proto-path -quiet -slower -status -unsafe-raw' ;;
	wireshark-profile) flags='-descriptor-set -proto -proto-path' ;;
	replay) flags='-backend -call -descriptor-set -dry-run -failed -method -o -proto -proto-path -speed -to -write' ;;
	fixture) flags='-backend -descriptor-set -listen -proto -proto-path -quiet -speed' ;;
	help) flags='' ;;
	dial-stdio) flags='-admin' ;;
	completion) flags='' ;;
	version) flags='-o' ;;
	esac
	COMPREPLY=()
	if [[ $word == -* ]]; then
		COMPREPLY=($(compgen -W "$flags" -- "$word"))
	elif [[ $COMP_CWORD == 1 || $command == help ]]; then
		COMPREPLY=($(compgen -W 'demo serve check doctor install uninstall why status pods events where hooks instances support ui tail dump view convert tap wireshark-profile replay fixture help dial-stdio completion version' -- "$word"))
	fi
}
complete -o default -F _criproxy criproxy
