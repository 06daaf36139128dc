package build

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/criproxy/criproxy/testbed/host"
)

// Proxy builds criproxy from this checkout, with the race detector unless $CRIPROXY_TESTBED_RACE is off, and with the data
// path $CRIPROXY_TESTBED_DATA_PATH as its default, if that is set. It returns the
// path of the program. Each process builds it once; thanks to Go's cache that is quick if nothing has changed.
var Proxy = sync.OnceValues(func() (string, error) {
	source, err := SourceDir()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(source)
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, fmt.Sprintf("criproxy-%08x", host.Hash(root)))
	args := []string{"build", "-buildvcs=false", "-trimpath", "-tags=grpcnotrace"} // as the Makefile does, so that Go's cache serves both
	race := os.Getenv("CRIPROXY_TESTBED_RACE") != "off"
	if race {
		dir += "-race"
		args = append(args, "-race")
	}
	if path := os.Getenv("CRIPROXY_TESTBED_DATA_PATH"); path != "" {
		dir += "-" + path
		args = append(args, "-ldflags", "-X github.com/criproxy/criproxy/internal/config.DefaultDataPath="+path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("testbed: making the cache folder: %w", err)
	}
	unlock, err := host.Lock(context.Background(), func() {}, dir+".lock")
	if err != nil {
		return "", fmt.Errorf("testbed: waiting for another build of criproxy: %w", err)
	}
	defer unlock()
	// A running criproxy keeps its file when a new file takes the name.
	program := filepath.Join(dir, "criproxy")
	cmd := host.CommandWithin(context.Background(), buildTimeout, "go", append(args, "-o", program+".new", "./cmd/criproxy")...)
	cmd.Dir, cmd.Env = root, Env(os.Environ(), race)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("testbed: building criproxy in %s: %w\n%s", root, err, host.LastLines(string(out), 20))
	}
	if err := os.Rename(program+".new", program); err != nil {
		return "", fmt.Errorf("testbed: storing criproxy: %w", err)
	}
	return program, nil
})
