package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// addAccessChecks registers the health checks and metrics of the access server.
func addAccessChecks(p *process, config *rest.Config, node *tailnet.Node, store *controller.Store, keys *keyring) {
	p.health.AddCheck("tailnet", func(context.Context) error {
		if st := node.Status(); !st.Running() {
			return fmt.Errorf("the node is %s", st.State)
		}
		return nil
	})
	p.health.AddCheck("kubernetes", apiServerCheck(config))
	p.health.AddCheck("signins", func(context.Context) error {
		if !store.Synced() {
			return errors.New("the cache of sign-ins is not synchronized yet")
		}
		return nil
	})
	p.health.AddCheck("clusterKey", keys.check)
	p.metrics.AddSignins(store.All)
	p.metrics.AddGauge("tailplane_tailnet_up", "1 while the node is in its tailnet.", func() (float64, bool) {
		if node.Status().Running() {
			return 1, true
		}
		return 0, true
	})
	p.metrics.AddGauge("tailplane_node_key_expiry_seconds", "Time until a person must sign the node in again; absent if the key does not expire.", func() (float64, bool) {
		at := node.Status().KeyExpiry
		return time.Until(at).Seconds(), !at.IsZero()
	})
}

// apiServerCheck returns the readiness check of every part that needs the API server.
func apiServerCheck(config *rest.Config) func(context.Context) error {
	return func(ctx context.Context) error { return kube.WaitReady(ctx, config, startLimit) }
}

// recordSigninChange records that a sign-in ended or was shortened without a request.
func recordSigninChange(p *process, self tailnet.Status, write func(audit.Entry) error, s signin.Signin, f signin.CheckResult) {
	e := audit.Entry{Verb: access.SigninEnd, Object: s.Name, Reason: f.Reason,
		Actor: selfActor(self),
		Args:  map[string]string{"login": s.Owner.Login, "device": s.Owner.DeviceName, "role": string(s.Role)}}
	if f.End {
		e.Args["cause"] = string(signin.CauseGrant)
		p.metrics.CountEnded(signin.CauseGrant)
	} else {
		e.Verb, e.Args["period"] = access.SigninShorten, f.Period.String()
	}
	p.log.Info("ended or shortened a sign-in after a change of the tailnet", "signin", s.Name, "login", s.Owner.Login, "reason", f.Reason)
	recordAction(p, write, e)
}

// selfActor returns this server as the actor of actions without a request.
func selfActor(self tailnet.Status) audit.Actor {
	a := audit.Actor{NodeID: self.ID, Via: access.ViaTailnet}
	if len(self.Names) > 0 {
		a.Node = self.Names[0]
	}
	return a
}
