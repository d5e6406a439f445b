package inject

import "slices"

// ephemeral decides on ephemeral containers that are added to a running pod. before and root are the decoded pod. It
// acts only on pods that have the adapter. It changes only the new containers, because the API server allows no other
// change.
func ephemeral(before, root map[string]any, o Options) Decision {
	p, bad := parsePod(root, o)
	var was *pod
	if bad == nil {
		was, bad = parsePod(before, o)
	}
	if bad != nil {
		return Decision{Outcome: Refused, Code: bad.code, Message: bad.message}
	}
	if !p.injected || !was.injected {
		return Decision{Outcome: Skipped, Code: NotLabelled, Message: "the pod has no adapter"}
	}
	patch, bad := p.editDebugContainers(was, o)
	switch {
	case bad != nil:
		return Decision{Outcome: Refused, Code: bad.code, Message: bad.message}
	case len(patch) == 0:
		return Decision{Outcome: Unchanged}
	}
	return Decision{Outcome: Patched, Patch: patch}
}

// editDebugContainers connects the ephemeral containers that p has and was does not have.
func (p *pod) editDebugContainers(was *pod, o Options) (Patch, *refusal) {
	w, _, err := parseSettings(was.annotations, o.port())
	if err != nil {
		return nil, refuse(BadAnnotation, "%v", err)
	}
	p.settings = w
	want := buildParts(w, o)
	e := &editor{root: p.root}
	for _, m := range p.containers {
		known := slices.ContainsFunc(was.containers, func(x containerRef) bool { return x.list == m.list && x.name == m.name })
		if m.list != "ephemeralContainers" || known {
			continue
		}
		c := containerIndexes(p.spec[m.list])[m.index]
		if c["targetContainerName"] == containerName && !w.sharedPID {
			return nil, refuse(
				SharedProcesses,
				`%s would share the adapter's processes and could read the pod's real credential there; to accept that, set the annotation %s: "true" on the pod`,
				m.where,
				sharedPIDAnnotation,
			)
		}
		if r := p.checkRealToken(m); r != nil {
			return nil, r
		}
		if r := p.checkVariables(m); r != nil {
			return nil, r
		}
		p.connectContainer(e, c, want, "spec", m.list, m.index)
	}
	return e.patch, nil
}
