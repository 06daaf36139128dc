package config

import (
	"errors"
	"fmt"
	"strings"
)

// ParseConnect reads the value of -connect.
func ParseConnect(s string) ([]Backend, error) {
	var backends []Backend
	var errs []error
	for _, one := range strings.Split(s, ",") {
		b, err := parseBackend(strings.TrimSpace(one))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		backends = append(backends, b)
	}
	return backends, errors.Join(errs...)
}

func parseBackend(s string) (Backend, error) {
	const scheme = "unix://"
	switch {
	case s == "":
		return Backend{}, errors.New("-connect: there is an empty item; want PATH or NAME:PATH between the commas")
	case s == "docker":
		return Backend{}, errors.New("-connect docker: criproxy has no dockershim; start cri-dockerd and use -connect /run/cri-dockerd.sock")
	case strings.HasPrefix(s, "/"):
		return Backend{Address: s}, nil
	case strings.HasPrefix(s, scheme):
		return Backend{Address: strings.TrimPrefix(s, scheme)}, nil
	}
	if i := strings.LastIndex(s, ":"+scheme+"/"); i >= 0 {
		return Backend{Name: s[:i], Address: s[i+1+len(scheme):]}, nil
	}
	if strings.Contains(s, "://") && strings.Count(s, ":/") == 1 {
		return Backend{}, fmt.Errorf("-connect: %q: want unix:///PATH, PATH or NAME:PATH; addresses on a network go into the configuration file", s)
	}
	if i := strings.LastIndex(s, ":/"); i >= 0 {
		return Backend{Name: s[:i], Address: s[i+1:]}, nil
	}
	return Backend{}, fmt.Errorf("-connect: %q: want PATH or NAME:PATH, where PATH is the absolute path of a socket", s)
}
