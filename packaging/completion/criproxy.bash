# Made by criproxy completion bash.
_criproxy() {
	local word=${COMP_WORDS[COMP_CWORD]} command=serve flags=
	[[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
	case $command in
	demo) flags='-idle -once -outage' ;;
	serve) flags='-admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -data-path -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	check) flags='-drift -o -admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -data-path -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	doctor) flags='-o -admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -data-path -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	install) flags='-config -containerd-config -crio-drop-ins -dry-run -takeover' ;;
	uninstall) flags='-config -containerd-config -crio-drop-ins -dry-run' ;;
	why) flags='-admin -descriptor-set -o -proto -proto-path -since' ;;
	status) flags='-admin -exit-code -o -watch' ;;
	pods) flags='-admin -backend -n -namespace -o -watch' ;;
	events) flags='-admin -backend -follow -o -since' ;;
	where) flags='-admin -o' ;;
	hooks) flags='-admin -o' ;;
	instances) flags='-o' ;;
	support) flags='-admin -config' ;;
	ui) flags='-admin -descriptor-set -listen -proto -proto-path' ;;
	tail) flags='-admin -backend -call -client -container -descriptor-set -diff -find -follow-pod -full -id -last -memory -method -namespace -o -own -past -pod -proto -proto-path -since -slower -status' ;;
	dump) flags='-admin -descriptor-set -proto -proto-path -since -until' ;;
	view) flags='-backend -call -client -container -descriptor-set -diff -find -follow-pod -full -html -id -memory -method -namespace -o -own -pod -proto -proto-path -sequence -slower -stats -status' ;;
	convert) flags='-descriptor-set -proto -proto-path' ;;
	tap) flags='-admin -backend -call -capture -capture-files -capture-max-bytes -client -connect -container -descriptor-set -diff -find -flight-recorder -follow-pod -full -id -listen -memory -method -namespace -o -own -pod -proto -proto-path -quiet -slower -status -unsafe-raw' ;;
	wireshark-profile) flags='-descriptor-set -proto -proto-path' ;;
	replay) flags='-backend -call -descriptor-set -dry-run -failed -method -o -proto -proto-path -speed -to -write' ;;
	fixture) flags='-backend -descriptor-set -listen -proto -proto-path -quiet -speed' ;;
	help) flags='' ;;
	completion) flags='' ;;
	version) flags='-o' ;;
	esac
	COMPREPLY=()
	if [[ $word == -* ]]; then
		COMPREPLY=($(compgen -W "$flags" -- "$word"))
	elif [[ $COMP_CWORD == 1 || $command == help ]]; then
		COMPREPLY=($(compgen -W 'demo serve check doctor install uninstall why status pods events where hooks instances support ui tail dump view convert tap wireshark-profile replay fixture help completion version' -- "$word"))
	fi
}
complete -o default -F _criproxy criproxy
