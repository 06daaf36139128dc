// Command release makes the parts of a release that are neither compiled nor packed by another tool: the licences of what
// is linked, the image, and the provenance. The Makefile runs it:
//
//	release licences -out FILE MODULE_DIR...     the licence of each module that is linked into criproxy
//	release image -out FILE -from DIST ARCH...   an OCI layout, as one tar file, with an image for each architecture
//	release provenance -out FILE ARTEFACT...     an in-toto statement of how the artefacts were made
//
// All of them make the same bytes from the same sources.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	commands := map[string]func(out string, flags map[string]string, args []string) error{
		"licences": licences, "image": image, "provenance": provenance,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: release licences|image|provenance -out FILE ...")
		os.Exit(2)
	}
	set := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	out := set.String("out", "", "the file to write")
	values := map[string]*string{}
	for _, name := range []string{"root", "from", "version", "commit"} {
		values[name] = set.String(name, "", "")
	}
	_ = set.Parse(os.Args[2:])
	flags := map[string]string{}
	for name, v := range values {
		flags[name] = *v
	}
	if err := commands[os.Args[1]](*out, flags, set.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "release: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
