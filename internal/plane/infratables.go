package plane

// The tables of the lists: the columns for search and sort, and the states. An unknown value is "".

// The states of objects with a Ready condition.
const (
	ready    = "Ready"
	notReady = "NotReady"
	unknown  = "Unknown"
)

var readiness = []string{ready, notReady, unknown}

func readyState(conditions []Condition) string {
	for _, c := range conditions {
		if c.Type != "Ready" {
			continue
		}
		switch c.Status {
		case "True":
			return ready
		case "False":
			return notReady
		}
	}
	return unknown
}

func clusters() table[Cluster] {
	return table[Cluster]{KindCluster, "ClusterList", map[string]func(Cluster) string{
		"name":     func(o Cluster) string { return o.Name },
		"endpoint": func(o Cluster) string { return o.Endpoint },
		"health":   func(o Cluster) string { return o.Health },
		"lastSeen": func(o Cluster) string { return sortableTime(o.LastSeen) },
		"version":  func(o Cluster) string { return o.Version },
	}, func(o Cluster) string { return o.Health }, []string{"Alive", "Suspect", "Unknown", "Dead", "Left"}}
}

func signins() table[Signin] {
	return table[Signin]{KindSignin, "SigninList", map[string]func(Signin) string{
		"login":      func(o Signin) string { return o.Login },
		"device":     func(o Signin) string { return o.Device },
		"role":       func(o Signin) string { return o.Role },
		"phase":      func(o Signin) string { return o.Phase },
		"created":    func(o Signin) string { return sortableTime(&o.Created) },
		"validUntil": func(o Signin) string { return sortableTime(o.ValidUntil) },
	}, func(o Signin) string { return o.Phase }, []string{"Pending", "Ready", "Refused", "Ending", "Expired"}}
}

func tailnets() table[Tailnet] {
	return table[Tailnet]{KindTailnet, "TailnetList", map[string]func(Tailnet) string{
		"name":         func(o Tailnet) string { return o.Name },
		"domain":       func(o Tailnet) string { return orEmpty(o.Domain) },
		"organisation": func(o Tailnet) string { return orEmpty(o.Organisation) },
		"devices":      func(o Tailnet) string { return sortableNumber(o.Devices) },
		"lastSync":     func(o Tailnet) string { return sortableTime(o.LastSync) },
	}, func(o Tailnet) string { return readyState(o.Conditions) }, readiness}
}

func gateways() table[Gateway] {
	return table[Gateway]{KindGateway, "GatewayList", map[string]func(Gateway) string{
		"name":      func(o Gateway) string { return o.Name },
		"namespace": func(o Gateway) string { return o.Namespace },
		"target":    func(o Gateway) string { return o.Target },
		"class":     func(o Gateway) string { return orEmpty(o.Class) },
	}, func(o Gateway) string { return readyState(o.Conditions) }, readiness}
}

func routes() table[Route] {
	return table[Route]{KindRoute, "RouteList", map[string]func(Route) string{
		"name":      func(o Route) string { return o.Name },
		"namespace": func(o Route) string { return o.Namespace },
		"resource":  func(o Route) string { return o.Resource },
		"target":    func(o Route) string { return o.Target },
		"tailnet":   func(o Route) string { return orEmpty(o.Tailnet) },
	}, func(o Route) string { return readyState(o.Conditions) }, readiness}
}

func proxyGroups() table[ProxyGroup] {
	return table[ProxyGroup]{KindProxyGroup, "ProxyGroupList", map[string]func(ProxyGroup) string{
		"name":      func(o ProxyGroup) string { return o.Name },
		"namespace": func(o ProxyGroup) string { return o.Namespace },
		"type":      func(o ProxyGroup) string { return o.Type },
		"tailnet":   func(o ProxyGroup) string { return orEmpty(o.Tailnet) },
		"ready":     func(o ProxyGroup) string { return sortableNumber(o.Ready) },
		"wanted":    func(o ProxyGroup) string { return sortableNumber(&o.Wanted) },
	}, func(o ProxyGroup) string { return readyState(o.Conditions) }, readiness}
}

func adapters() table[Adapter] {
	return table[Adapter]{KindAdapter, "AdapterList", map[string]func(Adapter) string{
		"pod":       func(o Adapter) string { return o.Pod },
		"namespace": func(o Adapter) string { return o.Namespace },
		"node":      func(o Adapter) string { return o.Node },
		"restarts":  func(o Adapter) string { return sortableNumber(o.Restarts) },
		"version":   func(o Adapter) string { return orEmpty(o.Version) },
	}, adapterState, readiness}
}

func adapterState(o Adapter) string {
	switch {
	case o.Ready == nil:
		return unknown
	case *o.Ready:
		return ready
	}
	return notReady
}
