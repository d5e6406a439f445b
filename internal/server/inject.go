package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/inject/controller"
	"github.com/tailplane/tailplane/internal/server/health"
)

// injectFlags are the addresses and names of the webhook. The sidecar file says what it injects.
type injectFlags struct {
	listen, health, sidecar, clientCA string
	namespace, secret, lease, webhook string
	names                             []string
	external                          bool
	drain, life, publish, keep, poll  time.Duration
	count, restart                    time.Duration
}

func injectCommand(f *flags) *cobra.Command {
	var i injectFlags
	c := &cobra.Command{
		Use: "inject", Short: "Serve the webhook that injects the adapter into pods",
		Long: "Answers the API server's admission reviews: it injects the adapter mca into pods that request it, or refuses with a reason.\n" +
			"It manages its certificate and the CA bundle that the API server trusts. It needs no settings file.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error { return runInject(c.Context(), *f, i) },
	}
	p := c.Flags()
	p.StringVar(&i.listen, "listen", ":8443", "address of the webhook")
	p.StringVar(&i.health, "health", ":8080", "address of probes and metrics")
	p.StringVar(&i.sidecar, "sidecar", "/etc/tailplane/sidecar.yaml", "sidecar file: image, resources, log level and port of the injected adapter")
	p.StringVar(&i.clientCA, "client-ca", "", "CA bundle file; clients must present a certificate signed by one of these CAs")
	p.StringVar(&i.namespace, "namespace", "tailplane-system", "namespace of the Secret and the Lease")
	p.StringVar(&i.secret, "tls-secret", "tailplane-inject-tls", "Secret that stores the webhook's certificate")
	p.StringVar(&i.lease, "lease", "tailplane-inject", "Lease of the replica that renews the certificate")
	p.StringVar(&i.webhook, "webhook", "tailplane-inject", "MutatingWebhookConfiguration and ValidatingWebhookConfiguration that get the CA bundle")
	p.StringSliceVar(&i.names, "name", []string{"tailplane-inject.tailplane-system.svc"}, "a name or address at which the API server calls the webhook")
	p.BoolVar(&i.external, "external-certificates", false, "another program, such as cert-manager, manages the Secret and the CA bundle that the API server trusts")
	p.DurationVar(&i.drain, "drain", 5*time.Second, "how long to continue to answer after the stop signal")
	p.DurationVar(&i.life, "certificate-life", controller.DefaultLifetime, "validity of a certificate; it is renewed after two thirds of this time")
	p.DurationVar(&i.publish, "publish-wait", controller.DefaultPublishTime, "maximum time until every API server uses a new CA bundle")
	p.DurationVar(&i.keep, "keep-wait", controller.DefaultKeepCA, "how long the previous CA stays trusted")
	p.DurationVar(&i.poll, "poll", controller.DefaultPollInterval, "how often to read the Secret")
	p.DurationVar(&i.count, "count-outdated", 0, "how often to count pods with an outdated adapter; requires the right to list pods; 0: never")
	p.DurationVar(&i.restart, "auto-restart", 0, "how often to restart at most one workload that requests it and has pods with an outdated adapter; requires the rights to list pods and to patch workloads; 0: never")
	c.AddCommand(injectStatus(f))
	return c
}

func runInject(ctx context.Context, f flags, i injectFlags) error {
	log, quieten, err := newLogger(f)
	if err != nil {
		return err
	}
	options, err := sidecarOptions(i.sidecar)
	if err != nil {
		return usageError{err}
	}
	base, err := clientAuthentication(i.clientCA)
	if err != nil {
		return usageError{err}
	}
	if f.check {
		return nil
	}
	quieten()
	config, err := apiServer(ctx, f.kubeconfig)
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
		Config: config, Namespace: i.namespace, Secret: i.secret, Lease: i.lease, Webhook: i.webhook, Hosts: i.names, External: i.external,
		Identity: fmt.Sprintf("%s-%d", host, os.Getpid()), Log: log, Now: time.Now, Lifetime: i.life, PublishTime: i.publish, KeepCA: i.keep, PollInterval: i.poll,
	}
	base.GetCertificate = certificates.GetCertificate
	metrics := health.NewInjectMetrics(version(), commit(), inject.Results())
	probes := &health.Listener{Address: i.health, Gatherer: metrics, Log: log}
	probes.AddCheck("certificate", certificates.Ready)
	metrics.AddReadiness(probes)
	webhook := &inject.Webhook{Options: options, Log: log, Measure: metrics.ObserveRequest, Config: checkConfig}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", i.listen)
	if err != nil {
		return err
	}
	log.Info("the webhook is served", "address", ln.Addr().String(), "image", options.Sidecar.Image)

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, probes.Stop)()
	// An API server that still has this replica in its endpoints calls it for a while.
	after, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(i.drain, end) })()
	return runTogether(cancel,
		func() error { return certificates.Run(after) },
		func() error { return countOutdated(after, config, options, i.count, metrics, log) },
		func() error {
			if i.restart <= 0 {
				<-after.Done()
				return nil
			}
			return (&controller.Restarter{Config: config, Namespace: i.namespace, Lease: i.lease + "-restarts", Identity: certificates.Identity, Options: options, Interval: i.restart, Log: log}).Run(after)
		},
		func() error { return webhook.Serve(after, ln, base) },
		func() error { return probes.Run(after) },
	)
}

// runTogether runs all parts. When the first one ends, together cancels the others.
func runTogether(cancel func(), parts ...func() error) error {
	ended := make(chan error, len(parts))
	for _, run := range parts {
		go func() {
			defer cancel()
			ended <- run()
		}()
	}
	var errs []error
	for range parts {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
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
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("--client-ca: %s contains no certificate", path)
	}
	return c, nil
}

func kubeVersion(config *rest.Config) (inject.KubeVersion, error) {
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		return inject.KubeVersion{}, err
	}
	v, err := k.Discovery().ServerVersion()
	if err != nil {
		return inject.KubeVersion{}, fmt.Errorf("the API server's version: %w", err)
	}
	return inject.ParseKubeVersion(v.Major + "." + v.Minor)
}
