package server

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/controller"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
)

// fleetAccount is the ServiceAccount that the chart creates. The fleet grants it rights in namespaces of runners, and the admission
// policies match it by this name.
const fleetAccount = "tailplane-fleet"

func fleetCommand(f *flags) *cobra.Command {
	elect := true
	c := &cobra.Command{
		Use: "fleet", Short: "Manage CI runners for several organisations",
		Long: "Creates, shares, holds and deletes the CI runners of organisations on GitHub and GitLab, according to RunnerForges, RunnerPools, RunnerEnrollments and RunnerHolds.\n" +
			"It starts after it has verified that the API server restricts its account to namespaces of runners.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return runFleet(c.Context(), *f, elect) },
	}
	c.Flags().BoolVar(&elect, "leader-elect", true, "only one replica is active at a time; the others wait")
	return c
}

func runFleet(ctx context.Context, f flags, elect bool) error {
	log, quieten, err := newLogger(f)
	if err != nil {
		return err
	}
	set, err := load(f.config, settings.FleetRole)
	if err != nil {
		return usageError{err}
	}
	if f.check {
		return nil
	}
	quieten()
	debug.SetGCPercent(50) // the large cache of scale sets barely changes; at 100 as much garbage could pile up
	s := set.Fleet
	metrics := health.NewFleetMetrics(version(), commit())
	controllers := &controller.Controllers{
		Isolation: isolation.Settings{Namespace: s.Namespace, Account: fleetAccount, Shared: s.SharedNamespace, ClusterCIDRs: s.Prefixes(), APIServers: s.Servers(), Images: isolation.Images(s.Images), Canary: isolation.CanarySettings(s.Canary)},
		Rules:     fleetRules(s), ARCNamespace: s.ARCNamespace,
		ByPlane: s.Approval == settings.ApprovalPlane, IsAdmin: s.Approver,
		Log: log, Now: time.Now, DriftCheckInterval: time.Duration(s.TruthCheckEvery), UserAgent: "tailplane-fleet/" + version(), OnForgeRequest: metrics.ObserveRequest, OnAllocation: metrics.ObserveAllocation,
	}
	if elect {
		controllers.LeaseNamespace = s.Namespace
	}
	metrics.AddValues(func() (health.FleetValues, bool) {
		now, known := controllers.Metrics()
		return fleetValues(now, time.Now()), known
	})
	probes := &health.Listener{Address: set.Health, Gatherer: metrics, Log: log}
	metrics.AddReadiness(probes)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, probes.Stop)()
	// /readyz also reports what is missing at the start.
	confined := make(chan struct{})
	probes.AddCheck("fleet", func(context.Context) error {
		select {
		case <-confined:
			return nil // a replica that waits for the election is ready
		default:
			return errors.New("starting")
		}
	})
	return runTogether(cancel,
		func() error { return probes.Run(ctx) },
		func() error {
			config, err := apiServer(ctx, f.kubeconfig)
			if err != nil {
				return err
			}
			probes.AddCheck("kubernetes", apiServerCheck(config))
			if err := verifyIsolation(ctx, config, s, log); err != nil || ctx.Err() != nil {
				return err
			}
			if len(controllers.Isolation.APIServers) == 0 {
				if controllers.Isolation.APIServers, err = apiServers(ctx, config); err != nil {
					return err
				}
			}
			controllers.Config = config
			close(confined)
			return controllers.Run(ctx)
		})
}

// fleetValues converts figures to metrics. It leaves out unknown values.
func fleetValues(now controller.Metrics, at time.Time) (v health.FleetValues) {
	for _, w := range now.Workloads {
		labels := []string{w.Forge, w.Org, w.Pool}
		for _, x := range []struct {
			state string
			n     *int
		}{{"idle", w.Idle}, {"busy", w.Busy}, {"pending", w.Pending}, {"failed", w.Failed}} {
			if x.n != nil {
				v.Runners = append(v.Runners, health.FleetValue{Labels: append(labels[:3:3], x.state), Value: float64(*x.n)})
			}
		}
		v.EffectiveMax = append(v.EffectiveMax, health.FleetValue{Labels: labels, Value: float64(w.EffectiveMax)})
		v.Failing = append(v.Failing, health.FleetValue{Labels: labels})
		if w.Failing {
			v.Failing[len(v.Failing)-1].Value = 1
		}
		if w.Stranded != nil {
			v.Stranded = append(v.Stranded, health.FleetValue{Labels: labels, Value: float64(*w.Stranded)})
		}
		v.Drift = append(v.Drift, health.FleetValue{Labels: labels, Value: float64(w.Drift)})
	}
	for _, r := range now.Rates {
		v.Rates = append(v.Rates, health.FleetValue{Labels: []string{r.Forge, r.Org}, Value: float64(r.Remaining)})
	}
	for _, e := range now.Expiries {
		v.Expiries = append(v.Expiries, health.FleetValue{Labels: []string{e.Forge, e.Org}, Value: e.At.Sub(at).Seconds()})
	}
	v.Holds = now.Holds
	return v
}

// fleetRules returns the settings that the rules between enrollments use.
func fleetRules(s settings.Fleet) fleet.Rules {
	return fleet.Rules{CacheNamespaces: s.CacheNamespaces, ClusterCIDRs: s.Prefixes(), RequireOwnApp: s.RequireOwnApp}
}
