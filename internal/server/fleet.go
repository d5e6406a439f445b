package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime/debug"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/controller"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// fleetAccount is the ServiceAccount that the chart creates. The fleet grants it rights in namespaces of runners, and the admission
// policies match it by this name.
const fleetAccount = "tailplane-fleet"

// RunFleet runs the fleet of CI runners. It starts after it has verified that the API server restricts its account to namespaces of runners.
func RunFleet(ctx context.Context, o Options) error {
	var set settings.File
	log, err := o.start(func(*slog.Logger) (err error) {
		set, err = load(o.Config, settings.FleetRole)
		return err
	})
	if log == nil {
		return err
	}
	debug.SetGCPercent(50) // the large cache of scale sets barely changes; at 100 as much garbage could pile up
	s := set.Fleet
	metrics := health.NewFleetMetrics(version(), commit())
	controllers := &controller.Controllers{
		Isolation: isolation.Settings{Namespace: s.Namespace, Account: fleetAccount, Shared: s.SharedNamespace, ClusterCIDRs: s.Prefixes(), APIServers: s.Servers(), Images: isolation.Images(s.Images), Canary: isolation.CanarySettings(s.Canary)},
		Rules:     fleetRules(s), ARCNamespace: s.ARCNamespace,
		ByPlane: s.Approval == settings.ApprovalPlane, IsAdmin: s.Approver,
		Log: log, Now: time.Now, DriftCheckInterval: time.Duration(s.DriftCheckInterval), UserAgent: "tailplane-fleet/" + version(), OnForgeRequest: metrics.ObserveRequest, OnAllocation: metrics.ObserveAllocation,
	}
	if o.LeaderElect {
		controllers.LeaseNamespace = s.Namespace
	}
	metrics.AddValues(controllers.Metrics, time.Now)
	probes := &health.Listener{Address: set.Health, Gatherer: metrics, Log: log}
	metrics.AddReadiness(probes)
	// /readyz also reports what is missing at the start.
	working := addPart(probes, "fleet")
	return runTogether(ctx, func(context.Context) { probes.Stop() }, probes.Run,
		func(ctx context.Context) error {
			config, err := apiServer(ctx, o.Kubeconfig)
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
			working() // a replica that waits for the election is ready
			return controllers.Run(ctx)
		})
}

// fleetRules returns the settings that the rules between enrollments use.
func fleetRules(s settings.Fleet) fleet.Rules {
	return fleet.Rules{CacheNamespaces: s.CacheNamespaces, ClusterCIDRs: s.Prefixes(), RequireOwnApp: s.RequireOwnApp}
}

// policyWait is how long the admission policy may take to become effective. The policy is created together with this process, and the API
// server begins to evaluate it a moment later.
const policyWait = time.Minute

// verifyIsolation returns nil when the API server has refused two things that the fleet must not be able to do: to create a namespace of any name,
// and to bind itself in any namespace. RBAC cannot express these limits, and an account that can do either can read every Secret of the
// cluster. Both attempts are dry runs and create nothing. verifyIsolation returns an error if the API server still allows one of them after
// policyWait.
func verifyIsolation(ctx context.Context, config *rest.Config, s settings.Fleet, log *slog.Logger) error {
	k, err := client.New(config, client.Options{})
	if err != nil {
		return err
	}
	labels := map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}
	tries := []struct {
		what   string
		object client.Object
	}{
		{"create a namespace of any name", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tailplane-outside", Labels: labels}}},
		{"bind itself in any namespace", &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "tailplane-outside", Namespace: metav1.NamespaceDefault, Labels: labels},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: isolation.FleetRole},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: fleetAccount, Namespace: s.Namespace}}}},
	}
	limit, cancel := context.WithTimeout(ctx, policyWait)
	defer cancel()
	logged := false
	for {
		var free []string
		for _, try := range tries {
			err := k.Create(limit, try.object.DeepCopyObject().(client.Object), client.DryRunAll)
			switch {
			case ctx.Err() != nil:
				return nil // ctx has ended
			case err == nil:
				free = append(free, try.what)
			case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy"):
			case apierrors.IsForbidden(err):
				return fmt.Errorf("this account lacks a right of the ClusterRole tailplane-fleet: %w", err)
			default:
				return fmt.Errorf("check whether this account may %s: %w", try.what, err)
			}
		}
		if len(free) == 0 {
			return nil
		}
		if !logged {
			logged = true
			log.Warn("the API server does not restrict this account to namespaces of runners yet", "may", free)
		}
		if retry.Sleep(limit, time.Second) != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("this account may %s: the ValidatingAdmissionPolicy tailplane-fleet is not active, or has another account name than system:serviceaccount:%s:%s",
				strings.Join(free, " and "), s.Namespace, fleetAccount)
		}
	}
}

// apiServers returns the addresses by which pods reach the API server. They are the address of its Service and the endpoints of that
// Service, because a network policy may apply to either.
func apiServers(ctx context.Context, config *rest.Config) (all []netip.AddrPort, err error) {
	k, err := client.New(config, client.Options{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	at := client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
	var service corev1.Service
	var behind discoveryv1.EndpointSlice
	if err := errors.Join(k.Get(ctx, at, &service), k.Get(ctx, at, &behind)); err != nil {
		return nil, fmt.Errorf("find the addresses of the API server: %w; alternatively set fleet.apiServers", err)
	}
	add := func(address string, port int32) {
		if ip, err := netip.ParseAddr(address); err == nil && port > 0 {
			all = append(all, netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	for _, p := range service.Spec.Ports {
		for _, ip := range service.Spec.ClusterIPs {
			add(ip, p.Port)
		}
	}
	for _, p := range behind.Ports {
		for _, e := range behind.Endpoints {
			for _, ip := range e.Addresses {
				if p.Port != nil {
					add(ip, *p.Port)
				}
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the cluster reports no address of the API server: set fleet.apiServers")
	}
	return all, nil
}

// CanaryProbe tests from the network of a job that the blocked addresses cannot be reached.
type CanaryProbe = isolation.CanaryProbe

// CanaryReached is the error of a canary that reached a blocked address. The program exits with CanaryExitCode.
type CanaryReached = isolation.CanaryReachedError

// CanaryExitCode is the exit code that the fleet expects of a canary that reached a blocked address.
const CanaryExitCode = isolation.CanaryExitCode

// terminationLog is the file for a container's termination message.
const terminationLog = "/dev/termination-log"

// RunCanary runs the probe next to an organisation's jobs, and serves its readiness at listen. It reads no settings and has no rights.
func RunCanary(ctx context.Context, c *CanaryProbe, listen string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: c, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	err = c.Run(ctx)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = server.Shutdown(stop)
	<-served
	if err != nil {
		_ = os.WriteFile(terminationLog, []byte(err.Error()), 0o600)
	}
	return err
}
