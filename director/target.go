package director

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/leastrequest" // as a policy for Balance
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// CheckBalance returns what is wrong with the name of a policy for several servers.
func CheckBalance(policy string) error {
	if policy == "" || balancer.Get(policy) != nil {
		return nil
	}
	return fmt.Errorf("%q is no policy; want round_robin, pick_first or least_request_experimental", policy)
}

// targetOf returns how gRPC is to find the servers, of which there may be several, by
// its own resolvers and policies.
func targetOf(cfg ConnConfig) (target string, opts []grpc.DialOption, err error) {
	all := append([]string{cfg.Address}, cfg.More...)
	local := cfg.Credentials == nil
	for _, address := range all {
		network, err := NetworkOf(address)
		if err != nil {
			return "", nil, err
		}
		if strings.HasPrefix(address, dnsScheme) && len(all) > 1 {
			return "", nil, fmt.Errorf("%s: is all servers of that name; there can be no others", address)
		}
		local = local || network == networkUnix
	}
	if err := CheckBalance(cfg.Balance); err != nil {
		return "", nil, fmt.Errorf("balance: %w", err)
	}
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	opts = append(opts, grpc.WithTransportCredentials(creds))
	if local {
		// Servers that are not grpc-go refuse a socket path here:
		// https://github.com/kubernetes/kubernetes/pull/123463
		opts = append(opts, grpc.WithAuthority("localhost"))
	}
	switch {
	case len(all) > 1:
		r := manual.NewBuilderWithScheme("servers")
		state := resolver.State{}
		for _, address := range all {
			a := resolver.Address{Addr: address}
			if !local {
				a.ServerName = address // whose certificate it has to have
			}
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
		r.InitialState(state)
		target, opts = "servers:///"+cfg.Address, append(opts, grpc.WithResolvers(r))
	case strings.HasPrefix(cfg.Address, dnsScheme):
		target = cfg.Address
	default:
		return "passthrough:///" + cfg.Address, opts, nil
	}
	policy := cfg.Balance
	if policy == "" {
		policy = roundrobin.Name
	}
	config, err := json.Marshal(map[string]any{"loadBalancingConfig": []any{map[string]any{policy: map[string]any{}}}})
	return target, append(opts, grpc.WithDefaultServiceConfig(string(config))), err
}
