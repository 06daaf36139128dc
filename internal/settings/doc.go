// Package settings is the wing of what people write down: the profile of an API, the configuration of a proxy, and what
// a profile does not know about an API. It reads and checks text, and opens no socket.
//
// Comes in: imports from director, criadapter, and the wings observe, proxy and command.
// Goes out: imports of base and memory, whose words a profile uses for lists, and of codec and rewrite.
package settings
