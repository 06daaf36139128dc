package plugins

import "time"

// An Event is one of the types below, for logs and metrics. See [Config.Watch].
type Event any

// Loaded says that a plugin was registered, or that its file has changed.
type Loaded struct {
	Plugin   string // the name of its file
	File     File
	Replaced bool     // the file has changed
	Warnings []string // likely mistakes in the file
}

// Removed says that a plugin is no longer registered.
type Removed struct{ Plugin string }

// Broken says that a file is not valid. Kept says that its previous content stays in effect.
type Broken struct {
	Plugin string
	Err    error
	Kept   bool
}

// States are the states of all plugins that have a file, as [Plugins.State] returns them. They are reported whenever one of
// them may have changed: most have not.
type States []PluginState

// Trouble is a problem of the package itself.
type Trouble struct {
	What string // the effect of the problem
	Err  error
}

// Asked says that a plugin was called, before or after a call.
type Asked struct {
	Plugin string
	Point  string
	Method string // of the call, as "/package.Service/Method"
	ID     string // of the object that the call is about, if it has one yet
	Took   time.Duration
	Err    error // why there is no usable answer; a gRPC status if the plugin returned it

	Refused bool     // the call was refused because of Err
	Exempt  bool     // the call was not refused, because it is about a pod that serves a plugin
	Changes []Change // made by the plugin
	LeftOut []string // fields that the plugin did not get, because they are not UTF-8
}

// Conflict says that a plugin changed a field that an earlier one had changed.
type Conflict struct {
	Point, Field  string
	First, Second string // the plugins; the value of the second one counts
}

// Unknown says that the package could not find the object of a call, and so asked no plugin.
type Unknown struct {
	Method, ID string
	Err        error // why the object could not be looked up
	Refused    bool  // the call was refused, because a plugin has Fail
}

// Learned says how many objects were looked up.
type Learned struct {
	Objects int
	Took    time.Duration
	Err     error // some objects could not be looked up; calls about them look them up again
}
