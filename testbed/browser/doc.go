// Package browser drives the pages of `criproxy view -html` and `criproxy ui` in headless Chromium,
// and makes the pictures of the documentation:
//
//	cd testbed/browser && go test -update
//
// It is a module of its own, so that criproxy does not depend on what drives the browser.
package browser
