// Package host makes and removes what the testbed needs of the machine: folders, processes, cgroups, bridges, mount
// namespaces. Each instance of a daemon has a folder, from [NewDir]. [Clean] and [Leftovers] find what the instance has
// elsewhere by the name of that folder: they need no daemon and no record of a run that crashed.
//
// [Requirements] tries whether the machine can run containers.
package host
