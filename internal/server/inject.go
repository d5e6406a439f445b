package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"go.yaml.in/yaml/v3"
	kubediscovery "k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/inject/controller"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/multicluster"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// InjectOptions are the addresses and names of the webhook. The sidecar file says what it injects.
type InjectOptions struct {
	Listen, Health    string // addresses of the webhook, and of probes and metrics
	Sidecar, ClientCA string // files
	Namespace, Lease  string // the Lease names the replica that renews the certificate
	Secret, Webhook   string // objects that get the certificate and the CA bundle
	Names             []string
	External          bool // another program manages the Secret and the CA bundle

	Drain                           time.Duration // how long to continue to answer after the stop signal
	Lifetime, Publish, Retain, Poll time.Duration // of certificates
	CountEvery, RestartEvery        time.Duration // 0: never
}

// DefaultInjectOptions returns the default times of certificates.
func DefaultInjectOptions() InjectOptions {
	return InjectOptions{Lifetime: controller.DefaultLifetime, Publish: controller.DefaultPublishTime, Retain: controller.DefaultKeepCA, Poll: controller.DefaultPollInterval}
}

// RunInject serves the webhook that injects the adapter into pods.
func RunInject(ctx context.Context, o Options, i InjectOptions) error {
	var options inject.Options
	var base *tls.Config
	log, err := o.start(func(*slog.Logger) (err error) {
		if options, err = sidecarOptions(i.Sidecar); err == nil {
			base, err = clientAuthentication(i.ClientCA)
		}
		return err
	})
	if log == nil {
		return err
	}
	config, err := apiServer(ctx, o.Kubeconfig)
	if err != nil {
		return err
	}
	if options.Kubernetes, err = kubeVersion(config); err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	certificates := &controller.Certificates{
		Config: config, Namespace: i.Namespace, Secret: i.Secret, Lease: i.Lease, Webhook: i.Webhook, Hosts: i.Names, External: i.External,
		Identity: fmt.Sprintf("%s-%d", host, os.Getpid()), Log: log, Now: time.Now, Lifetime: i.Lifetime, PublishTime: i.Publish, KeepCA: i.Retain, PollInterval: i.Poll,
	}
	base.GetCertificate = certificates.GetCertificate
	metrics := health.NewInjectMetrics(version(), commit(), inject.Results())
	probes := &health.Listener{Address: i.Health, Gatherer: metrics, Log: log}
	probes.AddCheck("certificate", certificates.Ready)
	metrics.AddReadiness(probes)
	webhook := &inject.Webhook{Options: options, Log: log, Measure: metrics.ObserveRequest, Config: checkConfig}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", i.Listen)
	if err != nil {
		return err
	}
	log.Info("the webhook is served", "address", ln.Addr().String(), "image", options.Sidecar.Image)

	drain := func(after context.Context) {
		probes.Stop()
		_ = retry.Sleep(after, i.Drain) // an API server that still has this replica in its endpoints calls it for a while
	}
	parts := []func(context.Context) error{certificates.Run, probes.Run, func(ctx context.Context) error { return webhook.Serve(ctx, ln, base) }}
	if i.CountEvery > 0 {
		parts = append(parts, func(ctx context.Context) error {
			return countOutdated(ctx, config, options, i.CountEvery, metrics, log)
		})
	}
	if i.RestartEvery > 0 {
		parts = append(parts, (&controller.Restarter{Config: config, Namespace: i.Namespace, Lease: i.Lease + "-restarts", Identity: certificates.Identity,
			Options: options, Interval: i.RestartEvery, Log: log}).Run)
	}
	return runTogether(ctx, drain, parts...)
}

func sidecarOptions(path string) (inject.Options, error) {
	o := inject.Options{Sidecar: inject.DefaultSidecar(), Version: version()}
	b, err := os.ReadFile(path)
	if err != nil {
		return o, fmt.Errorf("sidecar file: %w; set it with --sidecar", err)
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&o.Sidecar); err != nil && err != io.EOF {
		return o, fmt.Errorf("%s: %w", path, err)
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return o, fmt.Errorf("%s contains more than one YAML document", path)
	}
	if err := o.Validate(); err != nil {
		return o, fmt.Errorf("%s: %w", path, err)
	}
	return o, nil
}

func clientAuthentication(path string) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if path == "" {
		return c, nil
	}
	if err := requireClientCertificates(c, path); err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	return c, nil
}

// requireClientCertificates makes clients present a certificate that is signed by one of the authorities in a PEM file.
func requireClientCertificates(c *tls.Config, path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(b) {
		return fmt.Errorf("%s contains no certificate", path)
	}
	return nil
}

func kubeVersion(config *rest.Config) (inject.KubeVersion, error) {
	k, err := kubediscovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return inject.KubeVersion{}, err
	}
	v, err := k.ServerVersion()
	if err != nil {
		return inject.KubeVersion{}, fmt.Errorf("the API server's version: %w", err)
	}
	return inject.ParseKubeVersion(v.Major + "." + v.Minor)
}

// PrintOutdated writes the pods with an outdated adapter to out, as text or json.
func PrintOutdated(ctx context.Context, o Options, sidecar, format string, out io.Writer) error {
	if format != "text" && format != "json" {
		return UsageError{fmt.Errorf("--output %q: text or json", format)}
	}
	options, err := sidecarOptions(sidecar)
	if err != nil {
		return UsageError{err}
	}
	config, err := kube.Config(o.Kubeconfig)
	if err != nil {
		return err
	}
	d, err := controller.FindOutdated(ctx, config, options)
	if err != nil {
		return err
	}
	if format == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(d)
	}
	for _, p := range d.Pods { // names and versions are quoted, because the creator of a pod chose them
		if _, err := fmt.Fprintf(out, "%s/%s of %q, injected by %q\n", p.Namespace, p.Name, p.Owner, p.Version); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%d of %d pods with the adapter have an outdated adapter\n", len(d.Pods), d.Injected)
	return err
}

// countOutdated updates the metric until ctx ends.
func countOutdated(ctx context.Context, config *rest.Config, o inject.Options, every time.Duration, m *health.InjectMetrics, log *slog.Logger) error {
	for {
		d, err := controller.FindOutdated(ctx, config, o)
		if err == nil {
			m.SetOutdated(len(d.Pods))
		} else if ctx.Err() == nil {
			log.Warn("counting the pods with an outdated adapter failed", "err", err)
			m.SetOutdated(-1)
		}
		if retry.Sleep(ctx, every) != nil {
			return nil
		}
	}
}

// checkConfig validates a configuration as adapters do, for the webhook.
func checkConfig(doc, previous []byte) (wrong, warnings []string) {
	report, err := multicluster.ValidateConfig(doc, previous)
	if err != nil && previous != nil { // no adapter accepted the previous one
		report, err = multicluster.ValidateConfig(doc, nil)
	}
	if err != nil {
		return []string{err.Error()}, nil
	}
	for _, f := range report.Errors {
		wrong = append(wrong, fmt.Sprint(f))
	}
	for _, f := range report.Warnings {
		warnings = append(warnings, fmt.Sprint(f))
	}
	return wrong, warnings
}
