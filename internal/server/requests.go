package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/requests"
	requestcontroller "github.com/tailplane/tailplane/internal/requests/controller"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// maxLeaseAge is how old the last renewal of the operator's Lease may be when a request is used. The operator renews it
// every two seconds.
const maxLeaseAge = 30 * time.Second

// A requestPart is the access server's part of access requests. Without a store, they are off, and the decision refuses
// every operation.
type requestPart struct {
	service *requests.Service
	store   *requestcontroller.Store
}

// newRequests returns the part, and lets the service of sign-ins use requests.
func newRequests(ctx context.Context, p *process, node *tailnet.Node, signins *controller.Store, service *signin.Service, policy access.Policy) (*requestPart, error) {
	r := p.set.Requests
	if !r.Enabled {
		return &requestPart{service: &requests.Service{}}, nil
	}
	id, err := kube.ClusterUID(ctx, p.config) // as the operator computes the digests, and not cluster.id, which it does not have
	if err != nil {
		return nil, err
	}
	store, err := requestcontroller.NewStore(p.config, p.set.Signin.Namespace, id)
	if err != nil {
		return nil, err
	}
	s := &requests.Service{
		Store: store, Signins: signins, Policy: policy, ClusterName: p.cluster.Name, ClusterID: id,
		Limits: requests.Limits{PendingFor: time.Duration(r.PendingFor), UseWithin: time.Duration(r.UseWithin), MaxPendingPerLogin: r.MaxPendingPerLogin,
			MaxPending: r.MaxPending, MaxAskedPerDay: r.MaxAskedPerDay, MaxKept: r.MaxKept},
		Devices: node.Devices, Check: service.CheckUse, MaxWait: time.Duration(p.set.API.MaxWait), RetryAfter: time.Duration(p.set.API.RetryAfter), Now: time.Now,
		Fresh: func(ctx context.Context) error { return requireFresh(ctx, node, time.Duration(r.MaxNetmapAge)) },
		Operator: func(ctx context.Context) error {
			return requireOperator(store.LeaseAge(ctx, p.set.Signin.SystemNamespace, controller.OperatorLease, time.Now()))
		},
	}
	service.UseRequest = s.Use
	p.health.AddCheck("requests", func(context.Context) error {
		if !store.Synced() {
			return errors.New("the cache of access requests is not synchronized yet")
		}
		return nil
	})
	return &requestPart{s, store}, nil
}

// requireFresh refuses to grant on what the tailnet said too long ago: whoever can block the connection to the control
// server must not keep rights.
func requireFresh(ctx context.Context, node *tailnet.Node, limit time.Duration) error {
	age, err := node.MapAge(ctx)
	switch {
	case err != nil:
		return err
	case age > limit:
		return problem.New(problem.IdentityUnavailable, fmt.Sprintf("This server has had no connection to the tailnet's control server for %v, so it grants nothing on what it knew then.", age.Round(time.Second)),
			"Try again when the tailnet works.").WithRetryAfter(time.Minute)
	}
	return nil
}

// requireOperator refuses a use that nobody would bind.
func requireOperator(age time.Duration, err error) error {
	switch {
	case err == nil && age < -maxLeaseAge:
		return problem.New(problem.ClockSkew, fmt.Sprintf("The operator's clock is %v ahead of this server's. The request is not used up.", (-age).Round(time.Second)),
			"Tell an administrator of the server.").WithRetryAfter(time.Minute)
	case err == nil && age <= maxLeaseAge:
		return nil
	}
	if err == nil {
		err = fmt.Errorf("the operator renewed its Lease %v ago", age.Round(time.Second))
	}
	return problem.New(problem.OperatorUnavailable, "The operator of this cluster does not run, so nothing would be bound. The request is not used up.", "Try again in a moment.").
		WithCause(err).WithRetryAfter(5 * time.Second)
}
