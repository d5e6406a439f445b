package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
)

// proxyAnswerTime is how long an access proxy may take to answer if the cluster has others.
const proxyAnswerTime = 5 * time.Second

// proxy returns the access proxy for kubeconfig entries: the first of those that the server proved that answers now, or the first if none
// does. The choice stays for the life of the client. Any answer counts, also a refusal: the proxies of a cluster decide alike.
func (c *Client) proxy(session signin.Session) signin.ProxyServer {
	if c.chosen == nil {
		c.chosen = &c.Info.Proxies[c.firstThatAnswers(session)]
	}
	return *c.chosen
}

// firstThatAnswers returns the index of a proxy.
func (c *Client) firstThatAnswers(session signin.Session) int {
	if len(c.Info.Proxies) < 2 {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), proxyAnswerTime)
	defer cancel()
	answers := make([]bool, len(c.Info.Proxies))
	var asked sync.WaitGroup
	for i, p := range c.Info.Proxies {
		asked.Go(func() {
			g, err := c.proxyKubeconfig(p, session)
			if err != nil {
				return
			}
			api, err := NewKubeAPI(g.Server, g.CA, g.Token, c.options.Tailscale)
			if err != nil {
				return
			}
			_, err = api.Version(ctx)
			_, refused := errors.AsType[*KubeAPIError](err)
			answers[i] = err == nil || refused
		})
	}
	asked.Wait()
	for i, answered := range answers {
		if answered {
			return i
		}
	}
	return 0
}
