package hook

import "time"

// An Event is something that people may want to know, log or count: one of the types
// below. See [Config.Watch].
type Event interface{ isEvent() }

// Loaded is a plugin that is asked from now on, or in another way than before.
type Loaded struct {
	Plugin   string // the name of its file
	File     File
	Replaced bool
	Warnings []string // what in the file is probably meant otherwise
}

// Removed is a plugin that is asked no longer.
type Removed struct{ Plugin string }

// Broken is a file that cannot be used. Kept is whether what it said before still holds.
type Broken struct {
	Plugin string
	Err    error
	Kept   bool
}

// Trouble is something that keeps the package from its work, with what that means.
type Trouble struct {
	What string
	Err  error
}

// Asked says that a plugin was called, before a call or after it.
type Asked struct {
	Plugin string
	Point  string
	Method string // the call, as "/package.Service/Method"
	ID     string // of the object that it is about, if it has one yet
	Took   time.Duration
	Err    error // why there is no answer that could be used; a gRPC status if the plugin said so

	Refused bool     // the call was not made because of that
	Exempt  bool     // it would have been refused, but is for what serves a plugin
	Changes []Change // what the plugin changed
	LeftOut []string // fields that the plugin did not get, because they are no valid text
}

// Conflict is a plugin that changed what one before it had changed as well.
type Conflict struct {
	Point, Field  string
	First, Second string // the plugins; the second one's value holds
}

// Unknown is a call about something that the package could not find out about, so that it could
// ask no plugin.
type Unknown struct {
	Method, ID string
	Err        error // why it could not be looked up
	Refused    bool  // a plugin is not to be passed by
}

// Learned says how many objects were looked up.
type Learned struct {
	Objects int
	Took    time.Duration
	Err     error // some could not be asked for; they are looked up when they are needed
}

func (Loaded) isEvent()   {}
func (Removed) isEvent()  {}
func (Broken) isEvent()   {}
func (Trouble) isEvent()  {}
func (Asked) isEvent()    {}
func (Conflict) isEvent() {}
func (Unknown) isEvent()  {}
func (Learned) isEvent()  {}
