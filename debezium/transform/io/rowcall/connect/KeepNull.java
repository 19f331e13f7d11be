package io.rowcall.connect;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.ConnectRecord;
import org.apache.kafka.connect.data.ConnectSchema;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Keeps NULL apart from a column's default.
 *
 * <p>An Avro converter asks a Struct for a field's value, and a Struct answers NULL with the field's default if the
 * schema has one. This transform rewrites keys and values to schemas whose optional fields have no default, taking
 * each value as it was stored. A required field keeps its default: it can never be NULL.
 *
 * <p>It stands between Debezium's event and the converter, changes no value, and needs no configuration.
 */
public final class KeepNull<R extends ConnectRecord<R>> implements Transformation<R> {

  /** Schemas already rewritten. A table has few; the bound is for a source that builds a schema for each record. */
  private static final int MOST_SCHEMAS = 10_000;

  private final Map<Schema, Schema> rewritten = new ConcurrentHashMap<>();

  @Override
  public R apply(R record) {
    Schema keySchema = record.keySchema();
    Schema valueSchema = record.valueSchema();
    Schema newKeySchema = keySchema == null ? null : withoutDefaults(keySchema);
    Schema newValueSchema = valueSchema == null ? null : withoutDefaults(valueSchema);
    if (newKeySchema == keySchema && newValueSchema == valueSchema) {
      return record;
    }
    return record.newRecord(
        record.topic(),
        record.kafkaPartition(),
        newKeySchema,
        moved(record.key(), newKeySchema),
        newValueSchema,
        moved(record.value(), newValueSchema),
        record.timestamp(),
        record.headers());
  }

  private Schema withoutDefaults(Schema schema) {
    Schema known = rewritten.get(schema);
    if (known != null) {
      return known;
    }
    Schema result = rewrite(schema);
    if (rewritten.size() >= MOST_SCHEMAS) {
      rewritten.clear();
    }
    rewritten.put(schema, result);
    return result;
  }

  /** The schema itself where nothing changes, so an untouched record costs one map look-up. */
  private Schema rewrite(Schema schema) {
    boolean dropsDefault = schema.isOptional() && schema.defaultValue() != null;
    if (schema.type() == Schema.Type.STRUCT) {
      return rewriteStruct(schema, dropsDefault);
    }
    Schema items = schema.type() == Schema.Type.ARRAY || schema.type() == Schema.Type.MAP ? schema.valueSchema() : null;
    Schema newItems = items == null ? null : withoutDefaults(items);
    if (!dropsDefault && newItems == items) {
      return schema;
    }
    return new ConnectSchema(
        schema.type(),
        schema.isOptional(),
        dropsDefault ? null : schema.defaultValue(),
        schema.name(),
        schema.version(),
        schema.doc(),
        schema.parameters(),
        null,
        schema.type() == Schema.Type.MAP ? schema.keySchema() : null,
        newItems);
  }

  private Schema rewriteStruct(Schema schema, boolean dropsDefault) {
    boolean changed = dropsDefault;
    SchemaBuilder builder = SchemaBuilder.struct().name(schema.name()).version(schema.version()).doc(schema.doc());
    if (schema.parameters() != null) {
      builder.parameters(schema.parameters());
    }
    if (schema.isOptional()) {
      builder.optional();
    }
    for (Field field : schema.fields()) {
      Schema newField = withoutDefaults(field.schema());
      changed |= newField != field.schema();
      builder.field(field.name(), newField);
    }
    if (!dropsDefault && changed && schema.defaultValue() != null) {
      builder.defaultValue(moved(schema.defaultValue(), builder.schema()));
    }
    return changed ? builder.build() : schema;
  }

  /** The same value under its rewritten schema; only a Struct carries its schema with it. */
  private Object moved(Object value, Schema schema) {
    if (value == null || schema == null) {
      return value;
    }
    return switch (schema.type()) {
      case STRUCT -> movedStruct((Struct) value, schema);
      case ARRAY -> {
        var items = new java.util.ArrayList<Object>();
        for (Object item : (java.util.List<?>) value) {
          items.add(moved(item, schema.valueSchema()));
        }
        yield items;
      }
      case MAP -> {
        var entries = new java.util.LinkedHashMap<Object, Object>();
        ((Map<?, ?>) value).forEach((name, item) -> entries.put(name, moved(item, schema.valueSchema())));
        yield entries;
      }
      default -> value;
    };
  }

  private Struct movedStruct(Struct source, Schema schema) {
    if (source.schema() == schema) {
      return source;
    }
    Struct target = new Struct(schema);
    for (Field field : schema.fields()) {
      target.put(field, moved(source.getWithoutDefault(field.name()), field.schema()));
    }
    return target;
  }

  @Override
  public ConfigDef config() {
    return new ConfigDef();
  }

  @Override
  public void configure(Map<String, ?> settings) {
    // Nothing to configure.
  }

  @Override
  public void close() {
    rewritten.clear();
  }
}
