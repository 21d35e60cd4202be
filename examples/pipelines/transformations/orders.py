# transformations/orders.py
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
service_url = "pulsar://localhost:6650"


@dp.table
def orders():
    return (
        spark.readStream.format("pulsar")
        .option("service.url", service_url)
        .option("topics", "sql-orders,sql-refunds")
        .option("startingOffsets", "earliest")
        .load()
    )


dp.create_sink(
    "long_orders",
    "pulsar",
    {"service.url": service_url, "topic": "long-orders"},
)


@dp.append_flow(target="long_orders")
def to_long_orders():
    return (
        spark.readStream.table("orders")
        .where("length(value) > 100")
        .select("value", "__key")
    )
