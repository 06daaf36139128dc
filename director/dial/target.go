package dial

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"github.com/criproxy/criproxy/internal/transport"
)

// targetOf returns a target and options with which gRPC's client finds one or several servers,
// with its own resolvers and policies.
func targetOf(cfg Config) (target string, opts []grpc.DialOption, err error) {
	all := append([]string{cfg.Address}, cfg.More...)
	local := cfg.Credentials == nil
	for _, one := range all {
		network, err := transport.Network(one)
		if err != nil {
			return "", nil, err
		}
		if strings.HasPrefix(one, transport.DNSScheme) && len(all) > 1 {
			return "", nil, fmt.Errorf("%s: stands for all servers with that name; leave out the other addresses", one)
		}
		local = local || network == transport.Unix
	}
	if err := transport.CheckBalance(cfg.Balance); err != nil {
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
	if !strings.HasPrefix(target, transport.DNSScheme) {
		r := manual.NewBuilderWithScheme("servers")
		state := resolver.State{}
		for _, one := range all {
			a := resolver.Address{Addr: one}
			if !local {
				a.ServerName = one // the name that its certificate must have
			}
			state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{a}})
		}
		r.InitialState(state)
		target, opts = "servers:///"+cfg.Address, append(opts, grpc.WithResolvers(r))
	}
	policy := cmp.Or(cfg.Balance, roundrobin.Name)
	config, err := json.Marshal(map[string]any{"loadBalancingConfig": []any{map[string]any{policy: map[string]any{}}}})
	return target, append(opts, grpc.WithDefaultServiceConfig(string(config))), err
}
