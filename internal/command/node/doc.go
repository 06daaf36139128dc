// Package node looks at the node that criproxy runs on, for criproxy doctor, and changes it, for
// criproxy install -takeover.
package node
