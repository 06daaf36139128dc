// Command guest is the testbed's only program in the virtual machine of testbed/vm:
//
//	guest serve DEVICE             runs commands from a serial port, one JSON object a line
//	guest watch SOCKET FILE PAUSE  lists pods and containers all the time, and records changes and errors
//	guest get URL                  prints a page
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "guest: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "serve":
		return serve(args[1])
	case len(args) == 4 && args[0] == "watch":
		pause, err := time.ParseDuration(args[3])
		if err != nil {
			return err
		}
		return watch(args[1], args[2], pause)
	case len(args) == 2 && args[0] == "get":
		return get(args[1])
	}
	return fmt.Errorf("%q: use serve DEVICE, watch SOCKET FILE PAUSE or get URL", args)
}

func get(url string) error {
	client := http.Client{Timeout: 30 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("getting %s: %s", url, resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
