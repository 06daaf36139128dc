package director

import (
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/criproxy/criproxy/internal/address"
)

// targetOf returns how gRPC is to find the servers, of which there may be several, by
// its own resolvers and policies.
func targetOf(cfg ConnConfig) (target string, opts []grpc.DialOption, err error) {
	all := append([]string{cfg.Address}, cfg.More...)
	local := cfg.Credentials == nil
	for _, one := range all {
		network, err := address.Network(one)
		if err != nil {
			return "", nil, err
		}
		if strings.HasPrefix(one, address.DNSScheme) && len(all) > 1 {
			return "", nil, fmt.Errorf("%s: is all servers of that name; there can be no others", one)
		}
		local = local || network == address.Unix
	}
	if err := address.CheckBalance(cfg.Balance); err != nil {
		return "", nil, fmt.Errorf("balance: %w", err)
	}
	creds := cfg.Credentials
	if creds == nil {
		creds = insecure.NewCredentials()
	}
	opts = append(opts, grpc.WithTransportCredentials(creds))
	if local {
		opts = append(opts, grpc.WithAuthority(localhost))
	}
	target = cfg.Address
	if len(all) > 1 {
		r := manual.NewBuilderWithScheme("servers")
		state := resolver.State{}
		for _, one := range all {
			a := resolver.Address{Addr: one}
			if !local {
				a.ServerName = one // whose certificate it has to have
			}
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
		r.InitialState(state)
		target, opts = "servers:///"+cfg.Address, append(opts, grpc.WithResolvers(r))
	}
	policy := cfg.Balance
	if policy == "" {
		policy = roundrobin.Name
	}
	config, err := json.Marshal(map[string]any{"loadBalancingConfig": []any{map[string]any{policy: map[string]any{}}}})
	return target, append(opts, grpc.WithDefaultServiceConfig(string(config))), err
}
