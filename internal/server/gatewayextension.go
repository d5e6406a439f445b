package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/controller"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/gateway/xds"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/retry"
)

func gatewayMetrics(clients *tsapi.Clients) *health.GatewayMetrics {
	var hooks, results []string
	for _, h := range xds.Hooks() {
		hooks = append(hooks, string(h))
	}
	for _, r := range xds.Results() {
		results = append(results, string(r))
	}
	return health.NewGatewayMetrics(version(), commit(), clients.CountFailing, hooks, results)
}

// countTime bounds the reading of caches for one scrape.
const countTime = 5 * time.Second

// countTailnets sets metrics to read the controllers' counts at each scrape.
func countTailnets(metrics *health.GatewayMetrics, controllers *controller.Runner) {
	metrics.AddTailnets(func() (health.TailnetCounts, bool) {
		ctx, cancel := context.WithTimeout(context.Background(), countTime)
		defer cancel()
		ready, degraded, services, ok := controllers.Count(ctx)
		return health.TailnetCounts{Ready: ready, Degraded: degraded, Services: services}, ok
	})
	metrics.AddOmittedNamespaces(controllers.UnreadableNamespaces)
}

// extensionServer returns the server that responds to Envoy Gateway. It measures each call and reports each response for the leader.
func extensionServer(set settings.GatewayExtension, reflection bool, log *slog.Logger, metrics *health.GatewayMetrics, answers *controller.TranslationReports) *xds.Server {
	return &xds.Server{
		Deadline: time.Duration(set.Deadline), MaxMessage: int(set.MaxMessageSize), Log: log, Reflection: reflection,
		Measure: func(c xds.Call) { metrics.ObserveCall(string(c.Hook), string(c.Result), c.Took, c.In, c.Out) },
		Report:  answers.Report,
	}
}

// publish returns a function that makes the server respond from a new snapshot.
func publish(server *xds.Server, metrics *health.GatewayMetrics) func(*gateway.Snapshot) {
	return func(n *gateway.Snapshot) {
		routes, clusters := 0, 0
		for _, g := range n.Gateways {
			routes, clusters = routes+len(g.Routes), clusters+len(g.Clusters)
		}
		metrics.SetRendered(routes, clusters)
		server.Publish(n)
	}
}

// serveExtension serves as soon as there is a snapshot and, if TLS is required, a certificate. Another process may create the certificates
// after this one has started.
func serveExtension(ctx context.Context, server *xds.Server, at xds.Address, dir string, log *slog.Logger) error {
	var config *tls.Config
	if dir != "" {
		files := &xds.Certificates{Dir: dir}
		logged := false
		for config == nil {
			var err error
			if config, err = files.Config(); err == nil {
				break
			}
			if !logged {
				log.Info("waiting for the extension server's certificate", "err", err)
				logged = true
			}
			if retry.Sleep(ctx, time.Second) != nil {
				return nil
			}
		}
	}
	return server.Run(ctx, at, config)
}

// extensionCertificates returns the keeper of the certificates for the Service that Envoy Gateway calls.
func extensionCertificates(namespace, domain string, log *slog.Logger) *controller.ExtensionCertificates {
	service := "tailscale-extension-server." + namespace
	return &controller.ExtensionCertificates{Namespace: namespace, Names: []string{service, service + ".svc", service + ".svc." + domain}, Client: xds.ClientName, Log: log, Now: time.Now}
}

// relaySettings converts the settings for relays.
func relaySettings(s settings.Gateway) (workload.Settings, error) {
	out := workload.Settings{Image: s.Proxy.Image, AllowCustomImages: s.Proxy.AllowCustomImages,
		EnvoyNamespaces: []string{s.Envoy.Namespace}, MonitoringNamespaces: s.Proxy.MonitoringNamespaces, Version: version(),
		PullPolicy: corev1.PullPolicy(s.Proxy.PullPolicy), PullSecrets: s.Proxy.PullSecrets}
	for kind, amounts := range s.Proxy.Resources {
		list := corev1.ResourceList{}
		for name, text := range amounts {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return out, fmt.Errorf("proxy.resources.%s.%s: %w", kind, name, err)
			}
			list[corev1.ResourceName(name)] = q
		}
		if kind == "limits" {
			out.Resources.Limits = list
		} else {
			out.Resources.Requests = list
		}
	}
	return out, nil
}
