package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
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

// GatewayOptions are the addresses, names and options of the gateway.
type GatewayOptions struct {
	Health, Namespace, Release string // address of probes and metrics, namespace of the operator, name of this installation
	ClientIDFile, SecretFile   string // of an OAuth client; both or neither
	Extension                  string // address for Envoy Gateway: host:port, or unix:///path
	TLSDir                     string // certificates of that address
	Certify                    bool   // create and renew these certificates
	Reflection                 bool   // serve gRPC reflection
	Controllers                bool   // false: only answer Envoy Gateway
}

// load checks the options, and reads and checks the settings file.
func (g GatewayOptions) load(file string, log *slog.Logger) (s settings.Gateway, at xds.Address, relays workload.Settings, err error) {
	if s, err = settings.LoadGateway(file); err != nil {
		return s, at, relays, err
	}
	logWarnings(log, s.Warnings())
	if at, err = xds.ParseAddress(g.Extension); err != nil {
		return s, at, relays, fmt.Errorf("--extension-addr: %w", err)
	}
	if g.TLSDir == "" && !at.Private() {
		return s, at, relays, fmt.Errorf("--extension-addr %s can be reached from other machines: set --extension-tls-dir", g.Extension)
	}
	if (g.ClientIDFile == "") != (g.SecretFile == "") {
		return s, at, relays, errors.New("CLIENT_ID_FILE and CLIENT_SECRET_FILE belong together: one is set, the other is not")
	}
	relays, err = relaySettings(s)
	return s, at, relays, err
}

// RunGateway connects several tailnets to the cluster. Every replica answers Envoy Gateway; one replica writes the objects.
func RunGateway(ctx context.Context, o Options, g GatewayOptions) error {
	var s settings.Gateway
	var at xds.Address
	var relays workload.Settings
	log, err := o.start(func(log *slog.Logger) (err error) {
		s, at, relays, err = g.load(o.Config, log)
		return err
	})
	if log == nil {
		return err
	}
	config, err := apiServer(ctx, o.Kubeconfig)
	if err != nil {
		return err
	}
	clients := new(tsapi.Clients)
	metrics := health.NewGatewayMetrics(version(), commit(), clients.CountFailing)
	answers := &controller.TranslationReports{Log: log}
	server := extensionServer(s.Extension, g.Reflection, log, metrics, answers)
	controllers := &controller.Runner{
		Config: config, Namespace: g.Namespace, CredentialNamespaces: s.CredentialNamespaces, BaseURLs: s.Tailnet.APIBaseURLs,
		ClientIDFile: g.ClientIDFile, ClientSecretFile: g.SecretFile, Clients: clients, UserAgent: "tailplane-gateway/" + version(),
		PerSecond: s.Tailnet.RequestsPerSecond, Burst: s.Tailnet.Burst, Log: log, Now: time.Now,
		Observe:       metrics.ObserveRequest,
		ClusterDomain: cmp.Or(s.ClusterDomain, searchedDomain(log)), Controller: s.Envoy.Controller, EnvoyNamespace: s.Envoy.Namespace,
		ProxyNamespaces: s.ProxyNamespaces, Addresses: s.Envoy.Discovery == settings.DiscoveryEndpoints,
		GatherOnly: !g.Controllers, Publisher: new(controller.Publisher), OnBuild: metrics.ObserveBuild, Reports: answers, OnRestore: metrics.CountRestored,
		Relays: relays, OnKey: metrics.CountKey, OperatorID: s.OperatorID, Release: g.Release, ConsumerNamespaces: s.ConsumerNamespaces,
		Publish: func(n *gateway.Snapshot) {
			metrics.SetRendered(n)
			server.Publish(n)
		},
	}
	if g.Certify {
		controllers.Certificates = extensionCertificates(g.Namespace, controllers.ClusterDomain, log)
	}
	if o.LeaderElect {
		controllers.LeaseNamespace = g.Namespace
	}
	metrics.AddTailnets(controllers.Count)
	metrics.AddOmittedNamespaces(controllers.UnreadableNamespaces)
	probes := &health.Listener{Address: g.Health, Gatherer: metrics, Log: log}
	probes.AddCheck("extension server", func(context.Context) error {
		if !server.Open() {
			return errors.New("not open: the state is not complete yet, or there is no certificate")
		}
		return nil
	})
	metrics.AddReadiness(probes)
	return runTogether(ctx, func(context.Context) { probes.Stop() }, controllers.Run, probes.Run, func(ctx context.Context) error {
		return serveExtension(ctx, server, at, g.TLSDir, log)
	})
}

// searchedDomain returns the cluster's domain according to the pod's resolver.
func searchedDomain(log *slog.Logger) string {
	b, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		log.Warn("reading the cluster's domain from resolv.conf failed", "err", err)
	}
	return settings.SearchedDomain(string(b))
}

// extensionServer returns the server that responds to Envoy Gateway. It measures each call and reports each response for the leader.
func extensionServer(set settings.GatewayExtension, reflection bool, log *slog.Logger, metrics *health.GatewayMetrics, answers *controller.TranslationReports) *xds.Server {
	return &xds.Server{
		Deadline: time.Duration(set.Deadline), MaxMessage: int(set.MaxMessageSize), Log: log, Reflection: reflection,
		Measure: metrics.ObserveCall,
		Report:  answers.Report,
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

// extensionCertificates returns the controller of the certificates for the Service that Envoy Gateway calls.
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

// EnvoyOptions describe the configuration of Envoy Gateway that PrintEnvoyConfig writes.
type EnvoyOptions = xds.ConfigOptions

// PrintEnvoyConfig writes the configuration with which Envoy Gateway calls the extension server at an address. Tailplane never writes it into
// a cluster, because Envoy Gateway owns that configuration and it may contain other settings.
func PrintEnvoyConfig(out io.Writer, address string, o EnvoyOptions) error {
	at, err := xds.ParseAddress(address)
	if err != nil {
		return UsageError{fmt.Errorf("--server: %w", err)}
	}
	o.Server = at
	b, err := xds.Config(o)
	if err != nil {
		return UsageError{err}
	}
	_, err = out.Write(b)
	return err
}
