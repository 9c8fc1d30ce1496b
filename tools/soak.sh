#!/bin/bash
# soak.sh BIN: the tests of `make test` that have counts, with the full ones. Some hours on 2 cores.
set -eu
bin=$1
export PENSTOCK_REQUIRE_ALL=1 PENSTOCK_ALL_VERSIONS=1
# In percent of the usual.
PENSTOCK_MODEL_EXAMPLES=${PENSTOCK_MODEL_EXAMPLES:-2000} \
  "$bin/pytest" tests/model tests/core/test_buffers.py tests/core/test_buffers_nodes.py -q -n auto --timeout 3600
PENSTOCK_SIM_SEEDS=${PENSTOCK_SIM_SEEDS:-2000} "$bin/pytest" tests/sim -q -n auto --timeout 7200
PENSTOCK_KILL_S=${PENSTOCK_KILL_S:-300} "$bin/pytest" tests/process/test_router_random_kills.py -q --timeout 3600
PENSTOCK_VANDALS=${PENSTOCK_VANDALS:-1000} PENSTOCK_POWER_CUTS=${PENSTOCK_POWER_CUTS:-30} \
  "$bin/pytest" tests/process/test_spool_damage.py tests/process/test_spool_power.py -q --timeout 3600
"$bin/pytest" tests/systemd -q
PENSTOCK_RECORDS=${PENSTOCK_RECORDS:-1000000} "$bin/pytest" tests/kafka/test_million.py -q -s --timeout 3600
PENSTOCK_RECORDS=${PENSTOCK_RECORDS:-100000} "$bin/pytest" tests/kafka/test_delivery.py tests/kafka/test_audit_topic.py -q --timeout 3600
PENSTOCK_ID_RECORDS=${PENSTOCK_ID_RECORDS:-200000} "$bin/pytest" tests/kafka/test_record_ids.py -q --timeout 3600
PENSTOCK_KILLS=${PENSTOCK_KILLS:-60} "$bin/pytest" tests/kafka/test_kills.py -q -s --timeout 3600
PENSTOCK_KILLS=${PENSTOCK_KILLS:-20} "$bin/pytest" tests/kafka/test_power_cut.py -q -s --timeout 3600
PENSTOCK_BOUNCES=${PENSTOCK_BOUNCES:-20} "$bin/pytest" tests/kafka/test_bounced_brokers.py -q -s --timeout 3600
"$bin/pytest" tests/kafka/test_leader_moves.py -q -s
PENSTOCK_FROZEN_S=${PENSTOCK_FROZEN_S:-60} "$bin/pytest" tests/kafka/test_stopped_broker.py -q -s --timeout 3600
PENSTOCK_TRANSACTIONS=${PENSTOCK_TRANSACTIONS:-10000} PENSTOCK_TRANSACTION_KILLS=30 PENSTOCK_COORDINATOR_STOPS=10 \
  "$bin/pytest" tests/kafka/test_transactions_exact.py -q -s --timeout 7200
PENSTOCK_LOOP_RECORDS=${PENSTOCK_LOOP_RECORDS:-100000} PENSTOCK_LOOP_KILLS=10 "$bin/pytest" tests/kafka/test_transform_loop.py -q -s --timeout 3600
PENSTOCK_SESSION_S=${PENSTOCK_SESSION_S:-60} "$bin/pytest" tests/kafka/test_security.py -q -s --timeout 3600
PENSTOCK_BROKER_KILLS=${PENSTOCK_BROKER_KILLS:-6} "$bin/pytest" tests/kafka/test_markers_lost.py -q -s --timeout 3600
PENSTOCK_RATE_ROWS=${PENSTOCK_RATE_ROWS:-5000} PENSTOCK_RATE_BATCHES=${PENSTOCK_RATE_BATCHES:-30} \
  "$bin/pytest" tests/pipeline/test_land_chaos.py -q --timeout 3600
PENSTOCK_LAND_RECORDS=${PENSTOCK_LAND_RECORDS:-200000} PENSTOCK_LAND_KILLS=${PENSTOCK_LAND_KILLS:-4} \
  "$bin/pytest" tests/pipeline/test_land_kafka.py -q --timeout 1200
PENSTOCK_AUDIT_WORLDS=${PENSTOCK_AUDIT_WORLDS:-20} PENSTOCK_AUDIT_INCARNATIONS=${PENSTOCK_AUDIT_INCARNATIONS:-20} \
  "$bin/pytest" tests/pipeline/test_audit_model.py -q --timeout 3600
# Delta's JVM connector under the Spark that it is made for; the Makefile has made the environment.
PENSTOCK_WRITER=delta-jvm build/jvm-env/bin/pytest tests/pipeline/test_tables.py tests/pipeline/test_parts.py tests/pipeline/test_seal.py \
  -q --timeout 1200
PENSTOCK_WRITER=delta-jvm PENSTOCK_CLUSTER_RECORDS=${PENSTOCK_CLUSTER_RECORDS:-20000} \
  build/jvm-env/bin/pytest tests/pipeline/test_land_kafka.py tests/pipeline/test_cluster.py -q --timeout 1200
PENSTOCK_PIPELINE_RECORDS=${PENSTOCK_PIPELINE_RECORDS:-2000000} "$bin/pytest" tests/pipeline/test_everything_lands_once.py -q -s --timeout 3600
PENSTOCK_CLUSTER_RECORDS=${PENSTOCK_CLUSTER_RECORDS:-20000} "$bin/pytest" tests/pipeline/test_cluster.py -q --timeout 1200
"$bin/python" bench/throughput.py
