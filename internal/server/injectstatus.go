package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/inject"
	"github.com/tailplane/tailplane/internal/inject/controller"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/server/health"
)

// injectStatus returns the command that lists the pods to recreate.
func injectStatus(f *flags) *cobra.Command {
	var sidecar, output string
	c := &cobra.Command{
		Use: "status", Short: "List pods with an outdated adapter",
		Long: "Compares the adapter of every pod with the one that the sidecar file injects now. It never changes running pods: recreate outdated ones.\n" +
			"It needs the right to list pods, and reads only their metadata.",
		Args: noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return usageError{fmt.Errorf("--output %q: text or json", output)}
			}
			options, err := sidecarOptions(sidecar)
			if err != nil {
				return usageError{err}
			}
			config, err := kube.Config(f.kubeconfig)
			if err != nil {
				return err
			}
			d, err := controller.FindOutdated(c.Context(), config, options)
			if err != nil {
				return err
			}
			return showDrift(c.OutOrStdout(), d, output)
		},
	}
	c.Flags().StringVar(&sidecar, "sidecar", "/etc/tailplane/sidecar.yaml", "sidecar file: the settings of the injected adapter")
	c.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return c
}

func showDrift(out io.Writer, d controller.Outdated, format string) error {
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
	_, err := fmt.Fprintf(out, "%d of %d pods with the adapter have an outdated adapter\n", len(d.Pods), d.Injected)
	return err
}

// countOutdated updates the metric until ctx ends.
func countOutdated(ctx context.Context, config *rest.Config, o inject.Options, every time.Duration, m *health.InjectMetrics, log *slog.Logger) error {
	if every <= 0 {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		d, err := controller.FindOutdated(ctx, config, o)
		if err == nil {
			m.SetOutdated(len(d.Pods))
		} else if ctx.Err() == nil {
			log.Warn("counting the pods with an outdated adapter failed", "err", err)
			m.SetOutdated(-1)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
