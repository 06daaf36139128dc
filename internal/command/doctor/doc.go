// Package doctor finds out what is wrong with a node: what would not work with criproxy between kubelet and the runtimes,
// and how to mend it. It looks at files, processes and sockets, and changes nothing. The caller asks the runtimes
// themselves, and passes their answers in [Backend].
package doctor
