// Package chaos has no code, only tests: two real containerds, a real criproxy and the kubelet's own client, while all
// of them are killed, stopped, restarted and cut off at random, and what must hold after each of these.
//
//	cd chaos && go test -v                        each fault once
//	cd chaos && go test -v -chaos.steps 60 -chaos.seed 7 -timeout 30m
//
// The faults are drawn by -chaos.seed: the same seed gives the same ones in the same order. What they hit is up to the
// clock.
package chaos
