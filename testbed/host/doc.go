// Package host makes and removes what the testbed needs of the machine: folders, processes, cgroups, bridges, mount
// namespaces. Each instance of a daemon has a folder, from [NewDir]; whatever the instance has outside of it is found by the name of that
// folder, so that [Clean] needs no daemon and no record of a run that crashed, and [Leftovers] can tell what is still there.
//
// [Requirements] tries what the machine can do.
package host
