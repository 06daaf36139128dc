// Package host manages the resources of the machine that the testbed uses: folders, processes, cgroups, bridges, mount
// namespaces. Each instance of a daemon has a folder, from [NewDir]. By the name of that folder, [Clean] and
// [Leftovers] find what the instance has elsewhere: they need no running daemon and no record of a crashed run.
//
// [Requirements] checks whether the machine can run containers.
package host
