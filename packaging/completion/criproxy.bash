# Made by criproxy completion bash.
_criproxy() {
	local word=${COMP_WORDS[COMP_CWORD]} command=serve flags=
	[[ $COMP_CWORD -gt 1 && ${COMP_WORDS[1]} != -* ]] && command=${COMP_WORDS[1]}
	case $command in
	serve) flags='-admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	check) flags='-drift -json -o -admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	status) flags='-admin -exit-code -json -o -watch' ;;
	pods) flags='-admin -backend -json -n -namespace -o -watch' ;;
	events) flags='-admin -backend -follow -json -o -since' ;;
	where) flags='-admin -json -o' ;;
	doctor) flags='-json -o -admin -backend-runtime-mode -capture -capture-files -capture-max-bytes -config -connect -flight-recorder -gone-after -hooks -ids -koord-runtimeproxy-endpoint -list-budget -listen -log-format -max-message-bytes -metrics -new-pods-to -profile -proto -proto-path -remote-runtime-service-endpoint -runtime-hook-server-key -runtime-hook-server-val -state-dir -streamPort -streamUrl -unsafe-raw -v' ;;
	hooks) flags='-admin -json -o' ;;
	instances) flags='-json -o' ;;
	support) flags='-admin -config -o' ;;
	completion) flags='' ;;
	demo) flags='-idle -once -outage' ;;
	ui) flags='-admin -descriptor-set -listen -proto -proto-path' ;;
	tail) flags='-admin -backend -client -container -descriptor-set -diff -follow-pod -full -id -json -method -n -namespace -o -own -past -pod -proto -proto-path -since -slower -status' ;;
	dump) flags='-admin -descriptor-set -o -proto -proto-path' ;;
	tap) flags='-admin -backend -capture -capture-files -capture-max-bytes -client -connect -container -descriptor-set -diff -flight-recorder -follow-pod -full -id -json -listen -method -namespace -o -own -pod -proto -proto-path -quiet -slower -status -unsafe-raw' ;;
	view) flags='-backend -client -container -descriptor-set -diff -follow-pod -full -html -id -json -method -namespace -o -own -pod -proto -proto-path -sequence -slower -stats -status' ;;
	convert) flags='-descriptor-set -proto -proto-path' ;;
	replay) flags='-backend -descriptor-set -dry-run -failed -json -method -o -proto -proto-path -speed -to -write' ;;
	fixture) flags='-backend -descriptor-set -listen -proto -proto-path -quiet -speed' ;;
	wireshark-profile) flags='-descriptor-set -proto -proto-path' ;;
	install) flags='-config -containerd-config -crio-drop-ins -dry-run -takeover' ;;
	uninstall) flags='-config -containerd-config -crio-drop-ins -dry-run' ;;
	version) flags='-json -o' ;;
	esac
	COMPREPLY=()
	if [[ $word == -* ]]; then
		COMPREPLY=($(compgen -W "$flags" -- "$word"))
	elif [[ $COMP_CWORD == 1 ]]; then
		COMPREPLY=($(compgen -W 'serve check status pods events where doctor hooks instances support completion demo ui tail dump tap view convert replay fixture wireshark-profile install uninstall version' -- "$word"))
	fi
}
complete -o default -F _criproxy criproxy
