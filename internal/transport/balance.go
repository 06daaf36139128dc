package transport

import (
	"fmt"

	"google.golang.org/grpc/balancer"
	_ "google.golang.org/grpc/balancer/leastrequest" // as a policy
	_ "google.golang.org/grpc/balancer/roundrobin"   // as the default policy
)

// CheckBalance returns an error unless policy is the name of one of gRPC's policies for choosing
// among several servers. The empty name is the default policy.
func CheckBalance(policy string) error {
	if policy == "" || balancer.Get(policy) != nil {
		return nil
	}
	return fmt.Errorf("invalid policy %q: want round_robin, pick_first or least_request_experimental", policy)
}
