// Package why tests criproxy why with a real kubelet on criproxy in front of a real containerd: each test makes one
// fault, and criproxy why must name it. make nightly runs it, because kubelet's own times take minutes.
//
//	go test -v -record FOLDER   # also saves the recorded calls after each fault
package why
