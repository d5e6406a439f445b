package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/util/retry"
)

// WaitReady waits until the API server answers, for at most limit. The error says what to check.
func WaitReady(ctx context.Context, config *rest.Config, limit time.Duration) error {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.NegotiatedSerializer, c.Timeout = nil, scheme.Codecs.WithoutConversion(), 5*time.Second
	client, err := rest.UnversionedRESTClientFor(c)
	if err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		// /version is open to every account and reads nothing from etcd.
		err := client.Get().AbsPath("/version").Do(ctx).Error()
		if err == nil {
			return nil
		}
		if retry.Sleep(ctx, time.Second) != nil {
			return fmt.Errorf("the API server %s did not answer in %v; check --kubeconfig, the ServiceAccount and the network: %w", config.Host, limit, err)
		}
	}
}
