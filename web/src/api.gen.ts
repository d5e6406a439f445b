// Generated from the OpenAPI document. Do not edit; run: npm run generate
// schemas: 64594c5a1df7ddca980711750389e9d825367fa07698595511ca9ea8a788ab61

export type paths = Record<string, never>;
export type webhooks = Record<string, never>;
export interface components {
    schemas: {
        Action: {
            allowed: boolean;
            why: string;
        };
        Actions: {
            approve: components["schemas"]["Action"];
            close: components["schemas"]["Action"];
            merge: components["schemas"]["Action"];
        };
        Actor: {
            login?: string;
            node?: string;
            nodeId?: string;
            tags?: string[];
            userId?: string;
            via?: string;
        };
        Adapter: {
            clusters: components["schemas"]["AdapterReach"][] | null;
            id: string;
            message: string;
            namespace: string;
            node: string;
            /** Format: date-time */
            observedAt: string;
            outdated: boolean | null;
            pod: string;
            ready: boolean | null;
            restarts: number | null;
            version: string | null;
        };
        AdapterReach: {
            cluster: string;
            healthy: boolean;
        };
        Adoption: {
            counts: components["schemas"]["Counts"];
            hold: string;
            max: number | null;
            min: number | null;
            namespace: string;
            pool: string;
            scaleSetId: number | null;
            /** Format: date-time */
            seenAt: string | null;
            workload: string;
        };
        Answer: {
            apiVersion: string;
            data: components["schemas"]["Outcome"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        Approval: {
            /** Format: date-time */
            at: string;
            by: string;
            head: string;
        };
        Asked: {
            args: {
                [key: string]: string;
            } | null;
            id: string;
            object: string;
            phrase: string;
            targets: number | null;
            /** Format: date-time */
            until: string;
            verb: string;
        };
        Attention: {
            id: string;
            /** @enum {string} */
            kind: "cluster" | "signin" | "tailnet" | "gateway" | "route" | "proxygroup" | "adapter" | "pool" | "enrollment" | "hold" | "forge" | "change" | "drift";
            message: string;
            reason: string;
            /** @enum {string} */
            severity: "error" | "warning";
        };
        Bind: {
            namespaces?: string[];
            namespaceSelector?: string;
            role: string;
        };
        Change: {
            actions?: components["schemas"]["Actions"];
            /** Format: date-time */
            appliedAt: string | null;
            approvals: components["schemas"]["Approval"][] | null;
            base: string;
            branch: string;
            checks: components["schemas"]["Check"][] | null;
            diff: string;
            diffOf: string;
            file: string;
            head: string;
            id: string;
            kind: string;
            mergeBlocked: string;
            /** Format: date-time */
            mergedAt: string | null;
            mergedBy: string;
            name: string;
            number: number;
            /** Format: date-time */
            observedAt: string;
            /** Format: date-time */
            openedAt: string;
            org: string;
            platform: boolean;
            proposer: string;
            reason: string;
            risk: components["schemas"]["Risk"];
            stale: boolean;
            /** @enum {string} */
            state: "open" | "approved" | "merging" | "merged" | "applied" | "closed";
            title: string;
            url: string;
        };
        Check: {
            name: string;
            state: string;
            url: string;
        };
        Choice: {
            namespaces?: string[];
            period: string;
            role: string;
            rule?: string;
            where?: string;
        };
        CloseRequest: {
            reason: string;
        };
        Cluster: {
            conflict: boolean;
            endpoint: string;
            /** @enum {string} */
            health: "Alive" | "Suspect" | "Unknown" | "Dead" | "Left";
            id: string;
            labels: {
                [key: string]: string;
            } | null;
            /** Format: date-time */
            lastSeen: string | null;
            members: components["schemas"]["ClusterMember"][] | null;
            name: string;
            /** Format: date-time */
            observedAt: string;
            port: number;
            self: boolean;
            skew: boolean | null;
            url: string;
            verified: boolean;
            version: string;
        };
        ClusterMember: {
            health: string;
            host: string;
            /** Format: date-time */
            lastSeen: string | null;
            node: string;
        };
        Code: {
            code: string;
            /** Format: date-time */
            until: string;
        };
        Condition: {
            message: string;
            reason: string;
            /** Format: date-time */
            since?: string;
            /** @enum {string} */
            status: "True" | "False" | "Unknown";
            type: string;
        };
        Config: {
            id: string;
            settings: components["schemas"]["Setting"][] | null;
        };
        Confirm: {
            id?: string;
            path?: string;
            phrase?: string;
            targets?: number;
            /** Format: date-time */
            until: string;
        };
        ConfirmRequest: {
            id: string;
            phrase: string;
        };
        Connection: {
            bytes: number;
            cluster: string;
            cut: components["schemas"]["Action"];
            device: string;
            group: string;
            id: string;
            /** @enum {string} */
            kind: "watch" | "log" | "exec" | "attach" | "portforward" | "proxy";
            login: string;
            name: string;
            namespace: string;
            proxy: string;
            recording: string;
            resource: string;
            session: string;
            signin: string;
            /** Format: date-time */
            since: string;
            stream: string;
            tailnet: string;
        };
        Container: {
            exitCode: number | null;
            image: string;
            init: boolean;
            message: string;
            name: string;
            ready: boolean;
            reason: string;
            restarts: number;
            /** Format: date-time */
            started: string | null;
            /** @enum {string} */
            state: "Waiting" | "Running" | "Terminated" | "Unknown";
        };
        Controller: {
            kind: string;
            name: string;
            namespace: string;
        };
        Counts: {
            busy: number | null;
            failed: number | null;
            idle: number | null;
            pending: number | null;
        };
        Created: {
            created: boolean;
            dryRun: boolean;
            hold: components["schemas"]["Hold"];
            targets: number | null;
        };
        CreateRequest: {
            confirm?: string;
            /** @example 8h */
            expiresIn?: string;
            /** @enum {string} */
            mode?: "Pause" | "Drain" | "Stop";
            reason: string;
            scope: components["schemas"]["Scope"];
        };
        Credential: {
            /** Format: date-time */
            checkedAt: string | null;
            reason: string;
            valid: boolean | null;
        };
        CutConnection: {
            connection: components["schemas"]["Connection"];
        };
        CutRequest: {
            reason: string;
        };
        DecideRequest: {
            head: string;
            reason: string;
        };
        DeletedObject: {
            id: string;
        };
        Diagnosis: {
            findings: components["schemas"]["Finding"][] | null;
            id: string;
            state: string;
        };
        Drift: {
            actions?: components["schemas"]["DriftActions"];
            evidence: string;
            explainedBy: string;
            field: string;
            /** Format: date-time */
            firstSeen: string;
            forge: string;
            have: string | null;
            id: string;
            ignoredBy: string;
            ignoredReason: string;
            /** Format: date-time */
            ignoredUntil: string | null;
            /** @enum {string} */
            kind: "git" | "forge" | "actual";
            next: string;
            object: string;
            /** Format: date-time */
            observedAt: string;
            org: string;
            pool: string;
            /** @enum {string} */
            severity: "info" | "warning" | "error";
            subject: string;
            unconfirmed: boolean;
            want: string | null;
        };
        DriftActions: {
            ignore: components["schemas"]["Action"];
            unignore: components["schemas"]["Action"];
        };
        EditRequest: {
            patch: Record<string, never> | null;
            reason: string;
        };
        Empty: Record<string, never>;
        EnrolledPool: {
            max: number | null;
            name: string;
            repositories: string[] | null;
            type: string;
        };
        Enrollment: {
            actions?: components["schemas"]["EnrollmentActions"];
            adopted: components["schemas"]["Adoption"][] | null;
            approval: components["schemas"]["EnrollmentApproval"] | null;
            asked: components["schemas"]["EnrollmentAsked"] | null;
            conditions: components["schemas"]["Condition"][] | null;
            configURL: string;
            credential: components["schemas"]["EnrollmentCredential"] | null;
            digest: string;
            forge: string;
            id: string;
            /** @enum {string} */
            isolation: "None" | "Namespace" | "Node";
            members: string[] | null;
            name: string;
            /** Format: date-time */
            observedAt: string;
            offboard: components["schemas"]["Offboard"] | null;
            owners: string[] | null;
            /** @enum {string} */
            phase: "Unknown" | "Requested" | "Approved" | "Provisioning" | "Active" | "Suspended" | "Draining" | "Offboarded" | "Failed";
            pools: components["schemas"]["EnrolledPool"][] | null;
            quota: components["schemas"]["Quota"] | null;
            requestedBy: string[] | null;
            rotation: components["schemas"]["Rotation"];
        };
        EnrollmentActions: {
            approve: components["schemas"]["Action"];
            decline: components["schemas"]["Action"];
            edit: components["schemas"]["Action"];
            offboard: components["schemas"]["Action"];
            rotate: components["schemas"]["Action"];
        };
        EnrollmentApproval: {
            /** Format: date-time */
            at: string;
            by: string;
            digest: string;
        };
        EnrollmentAsked: {
            /** Format: date-time */
            at: string;
            by: string;
            reason: string;
            /** @enum {string} */
            what: "rotate" | "offboard";
        };
        EnrollmentCredential: {
            appId: number | null;
            /** Format: date-time */
            createdAt: string | null;
            /** Format: date-time */
            expiresAt: string | null;
            fingerprint: string;
            installationId: number | null;
            kind: string;
        };
        EnrollmentDecideRequest: {
            reason: string;
            seen?: string;
        };
        Entry: {
            actor: components["schemas"]["Actor"];
            after?: {
                [key: string]: string;
            };
            args?: {
                [key: string]: string;
            };
            before?: {
                [key: string]: string;
            };
            clipped?: boolean;
            code?: string;
            credentialId?: string;
            error?: string;
            object?: string;
            org?: string;
            reason?: string;
            requestId: string;
            result: string;
            surface: string;
            tool?: string;
            /** Format: date-time */
            ts: string;
            verb: string;
        };
        EnvelopeOfAdapterList: {
            apiVersion: string;
            data: components["schemas"]["Adapter"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfAsked: {
            apiVersion: string;
            data: components["schemas"]["Asked"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfChange: {
            apiVersion: string;
            data: components["schemas"]["Change"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfChangeList: {
            apiVersion: string;
            data: components["schemas"]["Change"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfClusterList: {
            apiVersion: string;
            data: components["schemas"]["Cluster"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfCode: {
            apiVersion: string;
            data: components["schemas"]["Code"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfConfig: {
            apiVersion: string;
            data: components["schemas"]["Config"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfConnectionList: {
            apiVersion: string;
            data: components["schemas"]["Connection"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfCreated: {
            apiVersion: string;
            data: components["schemas"]["Created"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfCutConnection: {
            apiVersion: string;
            data: components["schemas"]["CutConnection"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfDiagnosis: {
            apiVersion: string;
            data: components["schemas"]["Diagnosis"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfDriftList: {
            apiVersion: string;
            data: components["schemas"]["Drift"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfEmpty: {
            apiVersion: string;
            data: components["schemas"]["Empty"] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfEnrollment: {
            apiVersion: string;
            data: components["schemas"]["Enrollment"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfEnrollmentList: {
            apiVersion: string;
            data: components["schemas"]["Enrollment"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfEventList: {
            apiVersion: string;
            data: components["schemas"]["Event"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfExposureList: {
            apiVersion: string;
            data: components["schemas"]["Exposure"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfForgeList: {
            apiVersion: string;
            data: components["schemas"]["Forge"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfGatewayList: {
            apiVersion: string;
            data: components["schemas"]["Gateway"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfHealth: {
            apiVersion: string;
            data: components["schemas"]["Health"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfHold: {
            apiVersion: string;
            data: components["schemas"]["Hold"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfHoldList: {
            apiVersion: string;
            data: components["schemas"]["Hold"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfIgnoring: {
            apiVersion: string;
            data: components["schemas"]["Ignoring"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfLifted: {
            apiVersion: string;
            data: components["schemas"]["Lifted"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfLog: {
            apiVersion: string;
            data: components["schemas"]["Log"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfMe: {
            apiVersion: string;
            data: components["schemas"]["Me"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfMetrics: {
            apiVersion: string;
            data: components["schemas"]["Metrics"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfOverview: {
            apiVersion: string;
            data: components["schemas"]["Overview"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfPolicyCheck: {
            apiVersion: string;
            data: components["schemas"]["PolicyCheck"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfPool: {
            apiVersion: string;
            data: components["schemas"]["Pool"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfPoolList: {
            apiVersion: string;
            data: components["schemas"]["Pool"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfPreview: {
            apiVersion: string;
            data: components["schemas"]["Preview"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfProxyGroupList: {
            apiVersion: string;
            data: components["schemas"]["ProxyGroup"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRecordingList: {
            apiVersion: string;
            data: components["schemas"]["Recording"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRefreshed: {
            apiVersion: string;
            data: components["schemas"]["Refreshed"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRescheduled: {
            apiVersion: string;
            data: components["schemas"]["Rescheduled"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRevocation: {
            apiVersion: string;
            data: components["schemas"]["Revocation"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRouteList: {
            apiVersion: string;
            data: components["schemas"]["Route"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRunner: {
            apiVersion: string;
            data: components["schemas"]["Runner"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRunnerList: {
            apiVersion: string;
            data: components["schemas"]["Runner"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfRunners: {
            apiVersion: string;
            data: components["schemas"]["Runners"];
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfSigninList: {
            apiVersion: string;
            data: components["schemas"]["Signin"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfSourceList: {
            apiVersion: string;
            data: components["schemas"]["Source"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        EnvelopeOfTailnetList: {
            apiVersion: string;
            data: components["schemas"]["Tailnet"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        Event: {
            by: string;
            count: number;
            /** Format: date-time */
            first: string;
            kind: string;
            /** Format: date-time */
            last: string;
            message: string;
            name: string;
            reason: string;
            /** @enum {string} */
            type: "Normal" | "Warning";
        };
        Exposure: {
            /** @enum {string} */
            access: "observe.read" | "identified";
            address: string | null;
            name: string;
            problem: string;
            source: string;
            /** @enum {string} */
            state: "ok" | "degraded" | "down";
        };
        ExtensionRevision: {
            /** Format: date-time */
            at: string | null;
            desired: string | null;
            fresh: boolean | null;
            translated: string | null;
        };
        Finding: {
            cause: string;
            evidence: string;
            next: string;
            /** @enum {string} */
            severity: "error" | "warning";
        };
        Forge: {
            conditions: components["schemas"]["Condition"][] | null;
            id: string;
            name: string;
            /** Format: date-time */
            observedAt: string;
            rateLimit: components["schemas"]["RateLimit"] | null;
            reachable: boolean | null;
            /** @enum {string} */
            type: "github" | "gitlab";
            url: string;
            version: string | null;
        };
        ForgeRunners: {
            counts: components["schemas"]["Counts"];
            forge: string;
            orgs: string[] | null;
            runners: components["schemas"]["Pool"][] | null;
            /** @enum {string} */
            source: "ok" | "down" | "unknown";
            /** @enum {string} */
            type: "github" | "gitlab" | "unknown";
        };
        Gateway: {
            class: string | null;
            conditions: components["schemas"]["Condition"][] | null;
            extension: components["schemas"]["ExtensionRevision"];
            id: string;
            listeners: components["schemas"]["Listener"][] | null;
            name: string;
            namespace: string;
            /** Format: date-time */
            observedAt: string;
            services: components["schemas"]["GatewayService"][] | null;
            tailnets: components["schemas"]["GatewayTailnet"][] | null;
            target: string;
        };
        GatewayService: {
            cluster: string;
            name: string;
            path: string;
            route: string;
            state: string;
            tailnet: string;
        };
        GatewayTailnet: {
            /** Format: date-time */
            lastSync: string | null;
            message: string;
            name: string;
            services: number;
            stale: boolean;
        };
        Health: {
            commit: string;
            ready: boolean;
            sources: components["schemas"]["Source"][];
            version: string;
        };
        Heartbeat: {
            /** Format: date-time */
            serverTime: string;
        };
        Hello: {
            heartbeatSeconds: number;
            revision: string;
            /** Format: date-time */
            serverTime: string;
        };
        History: {
            apiVersion: string;
            data: components["schemas"]["Entry"][] | null;
            error: components["schemas"]["Refused"] | null;
            kind: string;
            meta: components["schemas"]["Meta"];
        };
        Hold: {
            actions?: components["schemas"]["HoldActions"];
            applied: number | null;
            /** Format: date-time */
            created: string;
            drained: number | null;
            /** Format: date-time */
            expiresAt: string | null;
            failed: components["schemas"]["HoldFailure"][] | null;
            id: string;
            /** @enum {string} */
            mode: "Pause" | "Drain" | "Stop";
            name: string;
            /** Format: date-time */
            observedAt: string;
            reason: string;
            remainingJobs: number | null;
            requestedBy: string;
            scope: components["schemas"]["Scope"];
            /** @enum {string} */
            state: "Applying" | "Applied" | "Drained" | "Lifting" | "Expired";
            targets: number | null;
            uid: string;
            version: string;
        };
        HoldActions: {
            lift: components["schemas"]["Action"];
        };
        HoldFailure: {
            org: string;
            pool: string;
            reason: string;
        };
        IgnoreRequest: {
            /** @example 8h */
            expiresIn: string;
            reason: string;
        };
        Ignoring: {
            drift: components["schemas"]["Drift"];
            dryRun: boolean;
        };
        Job: {
            id: string;
            name: string;
            repository: string;
            run: number | null;
            /** Format: date-time */
            started: string | null;
            url: string;
            workflow: string;
        };
        Lifted: {
            dryRun: boolean;
            lifted: string[] | null;
            remaining: string[] | null;
        };
        LiftRequest: {
            confirm?: string;
            reason: string;
        };
        Listener: {
            hostname: string;
            name: string;
            port: number;
            protocol: string;
        };
        Log: {
            container: string;
            cut: boolean;
            lines: string[] | null;
            runner: string;
        };
        Look: {
            asked: boolean;
            message: string;
            source: string;
        };
        Marker: {
            /** Format: date-time */
            at: string;
            /** @enum {string} */
            kind: "hold" | "change";
            ref: string;
            text: string;
        };
        Me: {
            displayName: string;
            login: string;
            node: string;
            roles: components["schemas"]["Role"][];
            tags: string[];
            tailnet: string;
            verbs: {
                [key: string]: string[];
            };
            /** @enum {string} */
            via: "tailnet" | "serve" | "proxy" | "oidc" | "dev";
            warnings: string[];
        };
        Meta: {
            /** Format: date-time */
            generatedAt: string;
            page?: components["schemas"]["Page"];
            requestId: string;
            revision: string;
            sources: components["schemas"]["Source"][];
        };
        Metrics: {
            markers: components["schemas"]["Marker"][];
            of: string;
            series: components["schemas"]["Series"][] | null;
            stepSeconds: number;
            /** @enum {string} */
            window: "1h" | "6h" | "24h" | "7d";
        };
        Need: {
            org?: string;
            verb: string;
        };
        Notice: {
            reason: string;
        };
        Offboard: {
            message: string;
            /** Format: date-time */
            since: string;
            step: string;
        };
        OffboardRequest: {
            confirm?: string;
            reason: string;
        };
        Origin: {
            from: string;
            value: string;
        };
        Outcome: {
            /** @enum {string} */
            approval: "git" | "plane";
            change: components["schemas"]["Change"] | null;
            /** @enum {string} */
            done: "proposed" | "approved" | "declined" | "written" | "asked" | "nothing";
            enrollment: components["schemas"]["Enrollment"] | null;
            org: string;
            preview?: components["schemas"]["Preview"];
            seen?: string;
            /** @enum {string} */
            would?: "proposed" | "approved" | "declined" | "written" | "asked";
        };
        Overview: {
            adapters: components["schemas"]["Tally"] | null;
            attention: components["schemas"]["Attention"][];
            changes: components["schemas"]["Tally"] | null;
            clusters: components["schemas"]["Tally"] | null;
            drift: components["schemas"]["Tally"] | null;
            enrollments: components["schemas"]["Tally"] | null;
            forges: components["schemas"]["Tally"] | null;
            gateways: components["schemas"]["Tally"] | null;
            hidden: ("cluster" | "signin" | "tailnet" | "gateway" | "route" | "proxygroup" | "adapter" | "pool" | "enrollment" | "hold" | "forge" | "change" | "drift")[];
            holds: components["schemas"]["Tally"] | null;
            more: number;
            pools: components["schemas"]["Tally"] | null;
            proxygroups: components["schemas"]["Tally"] | null;
            routes: components["schemas"]["Tally"] | null;
            signins: components["schemas"]["Tally"] | null;
            tailnets: components["schemas"]["Tally"] | null;
        };
        Page: {
            limit: number;
            next: string;
            total: number | null;
        };
        PauseNameRequest: {
            drain?: boolean;
            /** @example 8h */
            expiresIn?: string;
            reason: string;
        };
        PauseRequest: {
            drain?: boolean;
            /** @example 8h */
            expiresIn?: string;
            reason: string;
        };
        Pod: {
            containers: components["schemas"]["Container"][] | null;
            message: string;
            node: string;
            phase: string;
            reason: string;
            /** Format: date-time */
            started: string | null;
        };
        PolicyCheck: {
            capability: string;
            checked: number;
            problems: components["schemas"]["PolicyProblem"][];
        };
        PolicyGrant: {
            app: {
                [key: string]: (Record<string, never> | null)[] | null;
            } | null;
            dst: string[];
        };
        PolicyProblem: {
            grant: number;
            message: string;
            rule: number;
        };
        PolicyRequest: {
            grants: components["schemas"]["PolicyGrant"][];
        };
        Pool: {
            actions?: components["schemas"]["PoolActions"];
            allocated: number | null;
            assigned: number | null;
            controller: components["schemas"]["Controller"];
            counts: components["schemas"]["Counts"];
            drift: string[] | null;
            effectiveMax: number | null;
            forge: string;
            holds: string[] | null;
            id: string;
            /** @enum {string} */
            isolation: "None" | "Namespace" | "Node";
            name: string;
            /** Format: date-time */
            observedAt: string;
            org: string;
            runnerId: number | null;
            runsOn: string[] | null;
            scaleSetId: number | null;
            scaling: components["schemas"]["Scaling"] | null;
            /** @enum {string} */
            state: "Error" | "Unknown" | "Degraded" | "Pausing" | "Draining" | "Resuming" | "Provisioning" | "Drained" | "Paused" | "Active";
            stateReason: string;
            stranded: number | null;
            /** @enum {string} */
            type: "Shared" | "Dedicated" | "OrgPlusUser" | "";
        };
        PoolActions: {
            pause: components["schemas"]["Action"];
            resume: components["schemas"]["Action"];
        };
        Preview: {
            base: string;
            diff: string;
            file: string;
            note?: string;
            open: string;
            org: string;
            platform: boolean;
            refused: string;
            risk: components["schemas"]["Risk"];
            rules: components["schemas"]["Rule"][] | null;
            version: string;
        };
        PreviewRequest: {
            kind: string;
            name: string;
            patch?: Record<string, never>;
            remove?: boolean;
            spec?: Record<string, never>;
        };
        ProposeRequest: {
            kind: string;
            name: string;
            patch?: Record<string, never>;
            reason: string;
            remove?: boolean;
            spec?: Record<string, never>;
            title?: string;
            version?: string;
        };
        ProxyGroup: {
            conditions: components["schemas"]["Condition"][] | null;
            devices: components["schemas"]["RelayDevice"][] | null;
            id: string;
            name: string;
            namespace: string;
            /** Format: date-time */
            observedAt: string;
            ready: number | null;
            tailnet: string | null;
            /** @enum {string} */
            type: "egress" | "ingress";
            wanted: number;
        };
        Quota: {
            cpu: string;
            memory: string;
            pods: number;
        };
        RateLimit: {
            remaining: number;
            /** Format: date-time */
            resetAt: string | null;
        };
        Recording: {
            audit: string;
            bytes: number;
            cluster: string;
            command: string;
            container: string;
            device: string;
            /** Format: date-time */
            ended: string;
            id: string;
            input: boolean;
            kind: string;
            login: string;
            namespace: string;
            pod: string;
            role: string;
            session: string;
            sha256: string;
            signin: string;
            /** Format: date-time */
            started: string;
            /** @enum {string} */
            state: "live" | "complete" | "incomplete";
            terminal: boolean;
        };
        Refreshed: {
            looks: components["schemas"]["Look"][];
        };
        RefreshRequest: Record<string, never>;
        Refusal: {
            message: string;
            reason: string;
            ref: string;
        };
        Refused: {
            advice: string[] | null;
            auditId?: string;
            choices?: components["schemas"]["Choice"][];
            code: string;
            confirm?: components["schemas"]["Confirm"];
            field?: string;
            have?: string[];
            message: string;
            needed?: components["schemas"]["Need"];
            retryAfterSeconds?: number;
            seen?: components["schemas"]["Seen"];
            state?: string;
        };
        RelayDevice: {
            addresses: string[] | null;
            fqdn: string;
            hostname: string;
            ordinal: number;
            ready: boolean;
            reason: string;
        };
        RequestRequest: {
            configURL?: string;
            forge: string;
            /** @enum {string} */
            isolation?: "None" | "Namespace" | "Node";
            members?: string[];
            more?: Record<string, never>;
            org: string;
            owners?: string[];
            pools: components["schemas"]["Use"][] | null;
            reason: string;
            secretName?: string;
        };
        Rescheduled: {
            dryRun: boolean;
            hold: components["schemas"]["Hold"];
        };
        RescheduleRequest: {
            confirm?: string;
            /** @example 8h */
            expiresIn?: string;
            reason: string;
        };
        Responses: {
            "DELETE /drift/{id}/ignore": components["schemas"]["EnvelopeOfIgnoring"];
            "DELETE /enrollments/{org}": components["schemas"]["Answer"];
            "DELETE /holds/{name}": components["schemas"]["EnvelopeOfLifted"];
            "DELETE /signins/{namespace}/{name}": components["schemas"]["EnvelopeOfRevocation"];
            "GET /adapters": components["schemas"]["EnvelopeOfAdapterList"];
            "GET /audit": components["schemas"]["History"];
            "GET /changes": components["schemas"]["EnvelopeOfChangeList"];
            "GET /changes/{id}": components["schemas"]["EnvelopeOfChange"];
            "GET /clusters": components["schemas"]["EnvelopeOfClusterList"];
            "GET /confirmations/{id}": components["schemas"]["EnvelopeOfAsked"];
            "GET /connections": components["schemas"]["EnvelopeOfConnectionList"];
            "GET /drift": components["schemas"]["EnvelopeOfDriftList"];
            "GET /enrollments": components["schemas"]["EnvelopeOfEnrollmentList"];
            "GET /enrollments/{org}": components["schemas"]["EnvelopeOfEnrollment"];
            "GET /exposures": components["schemas"]["EnvelopeOfExposureList"];
            "GET /forges": components["schemas"]["EnvelopeOfForgeList"];
            "GET /gateways": components["schemas"]["EnvelopeOfGatewayList"];
            "GET /holds": components["schemas"]["EnvelopeOfHoldList"];
            "GET /holds/{name}": components["schemas"]["EnvelopeOfHold"];
            "GET /me": components["schemas"]["EnvelopeOfMe"];
            "GET /overview": components["schemas"]["EnvelopeOfOverview"];
            "GET /pools": components["schemas"]["EnvelopeOfPoolList"];
            "GET /pools/{forge}/{org}/{pool}": components["schemas"]["EnvelopeOfPool"];
            "GET /pools/{forge}/{org}/{pool}/config": components["schemas"]["EnvelopeOfConfig"];
            "GET /pools/{forge}/{org}/{pool}/diagnosis": components["schemas"]["EnvelopeOfDiagnosis"];
            "GET /pools/{forge}/{org}/{pool}/events": components["schemas"]["EnvelopeOfEventList"];
            "GET /pools/{forge}/{org}/{pool}/jobs": components["schemas"]["EnvelopeOfRunnerList"];
            "GET /pools/{forge}/{org}/{pool}/metrics": components["schemas"]["EnvelopeOfMetrics"];
            "GET /pools/{forge}/{org}/{pool}/runners": components["schemas"]["EnvelopeOfRunnerList"];
            "GET /proxygroups": components["schemas"]["EnvelopeOfProxyGroupList"];
            "GET /recordings": components["schemas"]["EnvelopeOfRecordingList"];
            "GET /routes": components["schemas"]["EnvelopeOfRouteList"];
            "GET /runners/{namespace}/{name}": components["schemas"]["EnvelopeOfRunner"];
            "GET /runners/{namespace}/{name}/log/lines": components["schemas"]["EnvelopeOfLog"];
            "GET /signins": components["schemas"]["EnvelopeOfSigninList"];
            "GET /sources": components["schemas"]["EnvelopeOfSourceList"];
            "GET /tailnets": components["schemas"]["EnvelopeOfTailnetList"];
            "PATCH /enrollments/{org}": components["schemas"]["Answer"];
            "PATCH /holds/{name}": components["schemas"]["EnvelopeOfRescheduled"];
            "POST /changes": components["schemas"]["EnvelopeOfChange"];
            "POST /changes/{id}/approve": components["schemas"]["EnvelopeOfChange"];
            "POST /changes/{id}/close": components["schemas"]["EnvelopeOfChange"];
            "POST /changes/{id}/merge": components["schemas"]["EnvelopeOfChange"];
            "POST /changes/preview": components["schemas"]["EnvelopeOfPreview"];
            "POST /check-policy": components["schemas"]["EnvelopeOfPolicyCheck"];
            "POST /confirmations": components["schemas"]["EnvelopeOfCode"];
            "POST /connections/{proxy}/{stream}/cut": components["schemas"]["EnvelopeOfCutConnection"];
            "POST /drift/{id}/ignore": components["schemas"]["EnvelopeOfIgnoring"];
            "POST /drift/refresh": components["schemas"]["EnvelopeOfRefreshed"];
            "POST /enrollments": components["schemas"]["Answer"];
            "POST /enrollments/{org}/approve": components["schemas"]["Answer"];
            "POST /enrollments/{org}/decline": components["schemas"]["Answer"];
            "POST /enrollments/{org}/offboard": components["schemas"]["Answer"];
            "POST /enrollments/{org}/rotate": components["schemas"]["Answer"];
            "POST /holds": components["schemas"]["EnvelopeOfCreated"];
            "POST /pools/{forge}/{org}/{pool}/pause": components["schemas"]["EnvelopeOfCreated"];
            "POST /pools/{forge}/{org}/{pool}/resume": components["schemas"]["EnvelopeOfLifted"];
        };
        ResumeNameRequest: {
            reason: string;
        };
        ResumeRequest: {
            reason: string;
        };
        Revocation: {
            deleted: boolean;
            dryRun: boolean;
            id: string;
            /** Format: date-time */
            refusedBy: string | null;
        };
        RevokeRequest: {
            reason: string;
        };
        Risk: {
            /** @enum {string} */
            level: "low" | "medium" | "high";
            why: string[] | null;
        };
        Role: {
            orgs: string[];
            /** @enum {string} */
            role: "viewer" | "operator" | "org-admin" | "platform-admin";
            source: string;
        };
        RotateRequest: {
            reason: string;
        };
        Rotation: {
            /** Format: date-time */
            at: string | null;
            every: string;
        };
        Route: {
            conditions: components["schemas"]["Condition"][] | null;
            hostnames: string[] | null;
            id: string;
            name: string;
            namespace: string;
            /** Format: date-time */
            observedAt: string;
            refused: components["schemas"]["Refusal"][] | null;
            /** @enum {string} */
            resource: "TailscaleRoutePolicy" | "TailscaleService" | "HTTPRoute";
            rules: components["schemas"]["RouteRule"][] | null;
            tailnet: string | null;
            target: string;
        };
        RouteRule: {
            backend: string;
            path: string;
            state: string;
        };
        Rule: {
            message: string;
            org: string;
            pool: string;
            reason: string;
        };
        Runner: {
            actions?: components["schemas"]["RunnerActions"];
            /** Format: date-time */
            created: string;
            failures: number | null;
            forgeId: number | null;
            forgeName: string;
            id: string;
            job: components["schemas"]["Job"] | null;
            /** @enum {string} */
            kind: "EphemeralRunner" | "Pod";
            /** Format: date-time */
            lastFailure: string | null;
            message: string;
            name: string;
            namespace: string;
            /** Format: date-time */
            observedAt: string;
            org: string;
            pod: components["schemas"]["Pod"] | null;
            pool: string;
            reason: string;
            /** @enum {string} */
            state: "Failed" | "Outdated" | "Pending" | "Starting" | "Ending" | "Busy" | "Idle" | "Finished";
        };
        RunnerActions: {
            log: components["schemas"]["Action"];
        };
        Runners: {
            forges: components["schemas"]["ForgeRunners"][] | null;
        };
        Scaling: {
            budget: number;
            max: number;
            min: number;
        };
        Scope: {
            all?: boolean;
            forge?: string;
            org?: string;
            pool?: string;
        };
        Seen: {
            login: string;
            node: string;
            via: string;
        };
        Series: {
            labels: {
                [key: string]: string;
            };
            /** @enum {string} */
            name: "running" | "waiting" | "idle" | "busy" | "max" | "completed" | "startup_p50" | "startup_p95" | "gitlab_running" | "gitlab_limit" | "gitlab_begun" | "gitlab_failed" | "gitlab_duration_p95";
            summary: components["schemas"]["Summary"];
            timestamps: string[];
            /** @enum {string} */
            unit: "jobs" | "runners" | "1/s" | "s";
            values: (number | null)[];
        };
        Setting: {
            from: string;
            name: string;
            over: components["schemas"]["Origin"][] | null;
            value: string;
        };
        Signin: {
            actions?: components["schemas"]["SigninActions"];
            bind?: components["schemas"]["Bind"][];
            conditions: components["schemas"]["Condition"][] | null;
            /** Format: date-time */
            created: string;
            device: string;
            id: string;
            login: string;
            name: string;
            namespace: string;
            namespaces: string[] | null;
            /** Format: date-time */
            observedAt: string;
            oidc?: components["schemas"]["SigninToken"];
            /** @enum {string} */
            phase: "Pending" | "Ready" | "Refused" | "Ending" | "Expired";
            reason: string;
            role: string;
            session: string;
            tailnet: string;
            /** Format: date-time */
            validUntil: string | null;
        };
        SigninActions: {
            revoke: components["schemas"]["Action"];
        };
        SigninToken: {
            claims?: {
                [key: string]: string;
            };
            issuer: string;
            subject: string;
        };
        Snapshot: {
            objects: {
                adapter?: components["schemas"]["Adapter"][] | null;
                change?: components["schemas"]["Change"][] | null;
                cluster?: components["schemas"]["Cluster"][] | null;
                drift?: components["schemas"]["Drift"][] | null;
                enrollment?: components["schemas"]["Enrollment"][] | null;
                forge?: components["schemas"]["Forge"][] | null;
                gateway?: components["schemas"]["Gateway"][] | null;
                hold?: components["schemas"]["Hold"][] | null;
                pool?: components["schemas"]["Pool"][] | null;
                proxygroup?: components["schemas"]["ProxyGroup"][] | null;
                route?: components["schemas"]["Route"][] | null;
                runner?: components["schemas"]["Runner"][] | null;
                signin?: components["schemas"]["Signin"][] | null;
                tailnet?: components["schemas"]["Tailnet"][] | null;
            };
            revision: string;
            sources?: components["schemas"]["Source"][];
        };
        Source: {
            message: string;
            name: string;
            /** Format: date-time */
            observedAt?: string;
            /** Format: date-time */
            since: string;
            /** @enum {string} */
            status: "ok" | "degraded" | "down";
        };
        StreamEvent: {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "adapter.delete";
            id?: string;
        } | {
            data: components["schemas"]["Adapter"];
            /** @constant */
            event: "adapter.upsert";
            id?: string;
        } | {
            data: components["schemas"]["Entry"];
            /** @constant */
            event: "audit.append";
            id?: string;
        } | {
            data: components["schemas"]["Notice"];
            /** @constant */
            event: "bye";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "change.delete";
            id?: string;
        } | {
            data: components["schemas"]["Change"];
            /** @constant */
            event: "change.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "cluster.delete";
            id?: string;
        } | {
            data: components["schemas"]["Cluster"];
            /** @constant */
            event: "cluster.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "drift.delete";
            id?: string;
        } | {
            data: components["schemas"]["Drift"];
            /** @constant */
            event: "drift.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "enrollment.delete";
            id?: string;
        } | {
            data: components["schemas"]["Enrollment"];
            /** @constant */
            event: "enrollment.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "forge.delete";
            id?: string;
        } | {
            data: components["schemas"]["Forge"];
            /** @constant */
            event: "forge.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "gateway.delete";
            id?: string;
        } | {
            data: components["schemas"]["Gateway"];
            /** @constant */
            event: "gateway.upsert";
            id?: string;
        } | {
            data: components["schemas"]["Heartbeat"];
            /** @constant */
            event: "heartbeat";
            id?: string;
        } | {
            data: components["schemas"]["Hello"];
            /** @constant */
            event: "hello";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "hold.delete";
            id?: string;
        } | {
            data: components["schemas"]["Hold"];
            /** @constant */
            event: "hold.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "pool.delete";
            id?: string;
        } | {
            data: components["schemas"]["Pool"];
            /** @constant */
            event: "pool.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "proxygroup.delete";
            id?: string;
        } | {
            data: components["schemas"]["ProxyGroup"];
            /** @constant */
            event: "proxygroup.upsert";
            id?: string;
        } | {
            data: components["schemas"]["Notice"];
            /** @constant */
            event: "resync";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "route.delete";
            id?: string;
        } | {
            data: components["schemas"]["Route"];
            /** @constant */
            event: "route.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "runner.delete";
            id?: string;
        } | {
            data: components["schemas"]["Runner"];
            /** @constant */
            event: "runner.upsert";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "signin.delete";
            id?: string;
        } | {
            data: components["schemas"]["Signin"];
            /** @constant */
            event: "signin.upsert";
            id?: string;
        } | {
            data: components["schemas"]["Snapshot"];
            /** @constant */
            event: "snapshot";
            id?: string;
        } | {
            data: components["schemas"]["Source"];
            /** @constant */
            event: "source.status";
            id?: string;
        } | {
            data: components["schemas"]["DeletedObject"];
            /** @constant */
            event: "tailnet.delete";
            id?: string;
        } | {
            data: components["schemas"]["Tailnet"];
            /** @constant */
            event: "tailnet.upsert";
            id?: string;
        };
        Summary: {
            last: number | null;
            max: number | null;
            min: number | null;
        };
        Tailnet: {
            conditions: components["schemas"]["Condition"][] | null;
            credential: components["schemas"]["Credential"];
            devices: number | null;
            domain: string | null;
            id: string;
            /** Format: date-time */
            lastSync: string | null;
            name: string;
            /** Format: date-time */
            observedAt: string;
            /** @enum {string|null} */
            organisation: "Personal" | "Organization" | null;
            services: number | null;
        };
        Tally: {
            states: {
                [key: string]: number;
            };
            total: number;
        };
        UnignoreRequest: {
            reason: string;
        };
        Use: {
            max?: number;
            name: string;
            repositories?: string[];
            /** @enum {string} */
            type?: "Shared" | "Dedicated" | "OrgPlusUser";
        };
    };
    responses: never;
    parameters: never;
    requestBodies: never;
    headers: never;
    pathItems: never;
}
export type Action = components['schemas']['Action'];
export type Actions = components['schemas']['Actions'];
export type Actor = components['schemas']['Actor'];
export type Adapter = components['schemas']['Adapter'];
export type AdapterReach = components['schemas']['AdapterReach'];
export type Adoption = components['schemas']['Adoption'];
export type Answer = components['schemas']['Answer'];
export type Approval = components['schemas']['Approval'];
export type Asked = components['schemas']['Asked'];
export type Attention = components['schemas']['Attention'];
export type Bind = components['schemas']['Bind'];
export type Change = components['schemas']['Change'];
export type Check = components['schemas']['Check'];
export type Choice = components['schemas']['Choice'];
export type CloseRequest = components['schemas']['CloseRequest'];
export type Cluster = components['schemas']['Cluster'];
export type ClusterMember = components['schemas']['ClusterMember'];
export type Code = components['schemas']['Code'];
export type Condition = components['schemas']['Condition'];
export type Config = components['schemas']['Config'];
export type Confirm = components['schemas']['Confirm'];
export type ConfirmRequest = components['schemas']['ConfirmRequest'];
export type Connection = components['schemas']['Connection'];
export type Container = components['schemas']['Container'];
export type Controller = components['schemas']['Controller'];
export type Counts = components['schemas']['Counts'];
export type Created = components['schemas']['Created'];
export type CreateRequest = components['schemas']['CreateRequest'];
export type Credential = components['schemas']['Credential'];
export type CutConnection = components['schemas']['CutConnection'];
export type CutRequest = components['schemas']['CutRequest'];
export type DecideRequest = components['schemas']['DecideRequest'];
export type DeletedObject = components['schemas']['DeletedObject'];
export type Diagnosis = components['schemas']['Diagnosis'];
export type Drift = components['schemas']['Drift'];
export type DriftActions = components['schemas']['DriftActions'];
export type EditRequest = components['schemas']['EditRequest'];
export type Empty = components['schemas']['Empty'];
export type EnrolledPool = components['schemas']['EnrolledPool'];
export type Enrollment = components['schemas']['Enrollment'];
export type EnrollmentActions = components['schemas']['EnrollmentActions'];
export type EnrollmentApproval = components['schemas']['EnrollmentApproval'];
export type EnrollmentAsked = components['schemas']['EnrollmentAsked'];
export type EnrollmentCredential = components['schemas']['EnrollmentCredential'];
export type EnrollmentDecideRequest = components['schemas']['EnrollmentDecideRequest'];
export type Entry = components['schemas']['Entry'];
export type EnvelopeOfAdapterList = components['schemas']['EnvelopeOfAdapterList'];
export type EnvelopeOfAsked = components['schemas']['EnvelopeOfAsked'];
export type EnvelopeOfChange = components['schemas']['EnvelopeOfChange'];
export type EnvelopeOfChangeList = components['schemas']['EnvelopeOfChangeList'];
export type EnvelopeOfClusterList = components['schemas']['EnvelopeOfClusterList'];
export type EnvelopeOfCode = components['schemas']['EnvelopeOfCode'];
export type EnvelopeOfConfig = components['schemas']['EnvelopeOfConfig'];
export type EnvelopeOfConnectionList = components['schemas']['EnvelopeOfConnectionList'];
export type EnvelopeOfCreated = components['schemas']['EnvelopeOfCreated'];
export type EnvelopeOfCutConnection = components['schemas']['EnvelopeOfCutConnection'];
export type EnvelopeOfDiagnosis = components['schemas']['EnvelopeOfDiagnosis'];
export type EnvelopeOfDriftList = components['schemas']['EnvelopeOfDriftList'];
export type EnvelopeOfEmpty = components['schemas']['EnvelopeOfEmpty'];
export type EnvelopeOfEnrollment = components['schemas']['EnvelopeOfEnrollment'];
export type EnvelopeOfEnrollmentList = components['schemas']['EnvelopeOfEnrollmentList'];
export type EnvelopeOfEventList = components['schemas']['EnvelopeOfEventList'];
export type EnvelopeOfExposureList = components['schemas']['EnvelopeOfExposureList'];
export type EnvelopeOfForgeList = components['schemas']['EnvelopeOfForgeList'];
export type EnvelopeOfGatewayList = components['schemas']['EnvelopeOfGatewayList'];
export type EnvelopeOfHealth = components['schemas']['EnvelopeOfHealth'];
export type EnvelopeOfHold = components['schemas']['EnvelopeOfHold'];
export type EnvelopeOfHoldList = components['schemas']['EnvelopeOfHoldList'];
export type EnvelopeOfIgnoring = components['schemas']['EnvelopeOfIgnoring'];
export type EnvelopeOfLifted = components['schemas']['EnvelopeOfLifted'];
export type EnvelopeOfLog = components['schemas']['EnvelopeOfLog'];
export type EnvelopeOfMe = components['schemas']['EnvelopeOfMe'];
export type EnvelopeOfMetrics = components['schemas']['EnvelopeOfMetrics'];
export type EnvelopeOfOverview = components['schemas']['EnvelopeOfOverview'];
export type EnvelopeOfPolicyCheck = components['schemas']['EnvelopeOfPolicyCheck'];
export type EnvelopeOfPool = components['schemas']['EnvelopeOfPool'];
export type EnvelopeOfPoolList = components['schemas']['EnvelopeOfPoolList'];
export type EnvelopeOfPreview = components['schemas']['EnvelopeOfPreview'];
export type EnvelopeOfProxyGroupList = components['schemas']['EnvelopeOfProxyGroupList'];
export type EnvelopeOfRecordingList = components['schemas']['EnvelopeOfRecordingList'];
export type EnvelopeOfRefreshed = components['schemas']['EnvelopeOfRefreshed'];
export type EnvelopeOfRescheduled = components['schemas']['EnvelopeOfRescheduled'];
export type EnvelopeOfRevocation = components['schemas']['EnvelopeOfRevocation'];
export type EnvelopeOfRouteList = components['schemas']['EnvelopeOfRouteList'];
export type EnvelopeOfRunner = components['schemas']['EnvelopeOfRunner'];
export type EnvelopeOfRunnerList = components['schemas']['EnvelopeOfRunnerList'];
export type EnvelopeOfRunners = components['schemas']['EnvelopeOfRunners'];
export type EnvelopeOfSigninList = components['schemas']['EnvelopeOfSigninList'];
export type EnvelopeOfSourceList = components['schemas']['EnvelopeOfSourceList'];
export type EnvelopeOfTailnetList = components['schemas']['EnvelopeOfTailnetList'];
export type Event = components['schemas']['Event'];
export type Exposure = components['schemas']['Exposure'];
export type ExtensionRevision = components['schemas']['ExtensionRevision'];
export type Finding = components['schemas']['Finding'];
export type Forge = components['schemas']['Forge'];
export type ForgeRunners = components['schemas']['ForgeRunners'];
export type Gateway = components['schemas']['Gateway'];
export type GatewayService = components['schemas']['GatewayService'];
export type GatewayTailnet = components['schemas']['GatewayTailnet'];
export type Health = components['schemas']['Health'];
export type Heartbeat = components['schemas']['Heartbeat'];
export type Hello = components['schemas']['Hello'];
export type History = components['schemas']['History'];
export type Hold = components['schemas']['Hold'];
export type HoldActions = components['schemas']['HoldActions'];
export type HoldFailure = components['schemas']['HoldFailure'];
export type IgnoreRequest = components['schemas']['IgnoreRequest'];
export type Ignoring = components['schemas']['Ignoring'];
export type Job = components['schemas']['Job'];
export type Lifted = components['schemas']['Lifted'];
export type LiftRequest = components['schemas']['LiftRequest'];
export type Listener = components['schemas']['Listener'];
export type Log = components['schemas']['Log'];
export type Look = components['schemas']['Look'];
export type Marker = components['schemas']['Marker'];
export type Me = components['schemas']['Me'];
export type Meta = components['schemas']['Meta'];
export type Metrics = components['schemas']['Metrics'];
export type Need = components['schemas']['Need'];
export type Notice = components['schemas']['Notice'];
export type Offboard = components['schemas']['Offboard'];
export type OffboardRequest = components['schemas']['OffboardRequest'];
export type Origin = components['schemas']['Origin'];
export type Outcome = components['schemas']['Outcome'];
export type Overview = components['schemas']['Overview'];
export type Page = components['schemas']['Page'];
export type PauseNameRequest = components['schemas']['PauseNameRequest'];
export type PauseRequest = components['schemas']['PauseRequest'];
export type Pod = components['schemas']['Pod'];
export type PolicyCheck = components['schemas']['PolicyCheck'];
export type PolicyGrant = components['schemas']['PolicyGrant'];
export type PolicyProblem = components['schemas']['PolicyProblem'];
export type PolicyRequest = components['schemas']['PolicyRequest'];
export type Pool = components['schemas']['Pool'];
export type PoolActions = components['schemas']['PoolActions'];
export type Preview = components['schemas']['Preview'];
export type PreviewRequest = components['schemas']['PreviewRequest'];
export type ProposeRequest = components['schemas']['ProposeRequest'];
export type ProxyGroup = components['schemas']['ProxyGroup'];
export type Quota = components['schemas']['Quota'];
export type RateLimit = components['schemas']['RateLimit'];
export type Recording = components['schemas']['Recording'];
export type Refreshed = components['schemas']['Refreshed'];
export type RefreshRequest = components['schemas']['RefreshRequest'];
export type Refusal = components['schemas']['Refusal'];
export type Refused = components['schemas']['Refused'];
export type RelayDevice = components['schemas']['RelayDevice'];
export type RequestRequest = components['schemas']['RequestRequest'];
export type Rescheduled = components['schemas']['Rescheduled'];
export type RescheduleRequest = components['schemas']['RescheduleRequest'];
export type Responses = components['schemas']['Responses'];
export type ResumeNameRequest = components['schemas']['ResumeNameRequest'];
export type ResumeRequest = components['schemas']['ResumeRequest'];
export type Revocation = components['schemas']['Revocation'];
export type RevokeRequest = components['schemas']['RevokeRequest'];
export type Risk = components['schemas']['Risk'];
export type Role = components['schemas']['Role'];
export type RotateRequest = components['schemas']['RotateRequest'];
export type Rotation = components['schemas']['Rotation'];
export type Route = components['schemas']['Route'];
export type RouteRule = components['schemas']['RouteRule'];
export type Rule = components['schemas']['Rule'];
export type Runner = components['schemas']['Runner'];
export type RunnerActions = components['schemas']['RunnerActions'];
export type Runners = components['schemas']['Runners'];
export type Scaling = components['schemas']['Scaling'];
export type Scope = components['schemas']['Scope'];
export type Seen = components['schemas']['Seen'];
export type Series = components['schemas']['Series'];
export type Setting = components['schemas']['Setting'];
export type Signin = components['schemas']['Signin'];
export type SigninActions = components['schemas']['SigninActions'];
export type SigninToken = components['schemas']['SigninToken'];
export type Snapshot = components['schemas']['Snapshot'];
export type Source = components['schemas']['Source'];
export type StreamEvent = components['schemas']['StreamEvent'];
export type Summary = components['schemas']['Summary'];
export type Tailnet = components['schemas']['Tailnet'];
export type Tally = components['schemas']['Tally'];
export type UnignoreRequest = components['schemas']['UnignoreRequest'];
export type Use = components['schemas']['Use'];
export type $defs = Record<string, never>;
export type operations = Record<string, never>;
